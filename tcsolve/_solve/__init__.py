"""Systems: checked, placed, factored, refined, reported."""
