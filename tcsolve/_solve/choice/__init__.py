"""The choice of the precision and the device, by predicted times and bytes."""
