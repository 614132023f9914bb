package settings

// desk is a resolver with its own environment.
type desk struct {
	*Resolver
	env map[string]string
}

func newDesk() *desk {
	d := &desk{env: map[string]string{}}
	d.Resolver = &Resolver{Env: func(k string) string { return d.env[k] }}
	return d
}

// token returns the token that calls would use.
func (d *desk) token() (string, error) {
	s, err := d.Settings()
	if err != nil {
		return "", err
	}

	c, err := d.ReadCredential(s)
	return c.Token, err
}
