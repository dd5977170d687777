"""The official networks and inputs from their recipes, and a demonstration's digits."""
