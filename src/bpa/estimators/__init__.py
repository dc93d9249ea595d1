"""The transform and the clusterer with the manners of scikit-learn."""
