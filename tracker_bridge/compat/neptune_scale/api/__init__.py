"""`neptune_scale.api`: only the place of `neptune_scale.api.run`."""
