r"""SPICE, phase two: clustering heads trained on prototype pseudo-labels, from cached features.

Niu, Shan, Wang: SPICE: Semantic Pseudo-labeling for Image Clustering (IEEE TIP 2022). A frozen encoder has
turned every image into features; small heads learn K clusters from labels they give themselves. In each
round the images a head is most sure of are averaged into one prototype per cluster, the images nearest to a
prototype receive its label, and the head is trained to predict these labels from strongly changed views of
the same images.

The transform enters at one place: the features E in which prototypes are averaged and neighbours are ranked
are ``transform(f)`` of the round's selection batch. Confidence still comes from the heads, training still
sees the views, and no gradient passes through the transform.

Per round, for each head with probabilities P (M, K) on the weak views:

.. math::

    S_c = \text{the } k \text{ largest of } P_{\cdot c}, \qquad
    \mu_c = \tfrac1k \textstyle\sum_{i \in S_c} E_i, \qquad
    \text{label } c \to \text{the } n \text{ largest of } E \mu_c,

with n = M // K and k = int(centre_ratio · n). The loss is the cross-entropy of the probabilities taken as
logits (a double softmax); its smallest value is log((e + K − 1) / e).

Everything about images lives with the caller: views are arrays of head inputs.
"""
