package settings

// desk is a resolver with an environment of its own.
type desk struct {
	*Resolver
	env map[string]string
}

func newDesk() *desk {
	d := &desk{env: map[string]string{}}
	d.Resolver = &Resolver{Env: func(k string) string { return d.env[k] }}
	return d
}

// token is the token that calls would carry.
func (d *desk) token() (string, error) {
	s, err := d.Settings()
	if err != nil {
		return "", err
	}

	c, err := d.ReadCredential(s)
	return c.Token, err
}
