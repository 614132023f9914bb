package settings

// testEnv is a resolver with its own environment.
type testEnv struct {
	*Resolver
	env map[string]string
}

func newTestEnv() *testEnv {
	d := &testEnv{env: map[string]string{}}
	d.Resolver = &Resolver{Env: func(k string) string { return d.env[k] }}
	return d
}

// token returns the token that calls would use.
func (t *testEnv) token() (string, error) {
	s, err := t.Settings()
	if err != nil {
		return "", err
	}

	c, err := t.ReadCredential(s)
	return c.Token, err
}
