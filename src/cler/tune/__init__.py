"""Tuning: settings drawn from a space, judged by images that no run is tested on."""
