"""What runs where: the Pulumi program and one Pulumi.<env>.yaml per environment."""
