"""The methods that the transform upgrades; the transform arrives as an argument."""
