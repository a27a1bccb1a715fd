"""Figures and reports made from run directories."""
