package login

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/settings"
	"github.com/carillonhq/carillon/pkg/client"
)

// slower is how much longer the pauses between two polls become when the provider asks for that.
const slower = 5 * time.Second

// signIn signs a person in with an identity provider, in the device flow, and returns the secret of the session. It waits
// until the person has confirmed the login in a browser.
func signIn(ctx context.Context, f *factory.Factory, provider string) (string, error) {
	cfg, err := f.ClientConfigWith(f.Timeout, settings.Credential{})
	if err != nil {
		return "", err
	}

	cfg.ReadOnly, cfg.Confidential = false, true // a login is no change of tasks, and the answer has the secret of the session
	c, err := client.New(cfg)
	if err != nil {
		return "", err
	}

	login, err := c.Logins.BeginDevice(ctx, provider)
	if err != nil {
		return "", err
	}

	f.Note("open %s and enter the code %s", output.OneLine(login.Page), output.OneLine(login.Code))
	if login.PageForCode != "" {
		f.Note("or open %s and compare the code", output.OneLine(login.PageForCode))
	}
	f.Note("waiting until you have confirmed the login …")

	// The provider ends the login in time: then polling returns an error. The limit is for one that does not.
	wait := max(time.Duration(login.Interval)*time.Second, time.Second)
	for until := time.Until(login.Ends.Time) + time.Minute; until > 0; until -= wait {
		session, err := c.Logins.PollDevice(ctx, login.Handle)

		switch {
		case err != nil && !mayPollAgain(err):
			return "", withOwnHint(f, err)
		case err == nil && session.Session != nil:
			return session.Session.Secret, nil
		case session.Slower:
			wait += slower
		}

		if err := factory.Sleep(ctx, wait); err != nil {
			return "", err
		}
	}

	return "", errors.New("nobody has confirmed the login in time")
}

// withOwnHint returns an error with the hint of the server. The usual hint for a request that is not authorized is to get
// another token, which does not help with a login that was refused.
func withOwnHint(f *factory.Factory, err error) error {
	var e *client.Error
	if !errors.As(err, &e) || e.Status != http.StatusUnauthorized || e.Hint == "" {
		return err
	}

	fail := f.ExplainRemote(e)
	fail.Hint = e.Hint

	return fail
}

// mayPollAgain reports whether a poll that has failed may succeed later: the node or the provider does not answer, or too many
// logins are under way.
func mayPollAgain(err error) bool {
	var e *client.Error
	if !errors.As(err, &e) {
		return false
	}
	if failure.IsUnreachable(err) {
		return true
	}

	switch e.Code {
	case client.CodeProviderAway, client.CodeBusy, client.CodeRateLimited, client.CodeNotReady:
		return true
	}

	return e.Status == http.StatusBadGateway || e.Status == http.StatusGatewayTimeout
}
