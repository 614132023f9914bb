package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/oidclogin"
	"github.com/carillonhq/carillon/pkg/internal/ui"
	"github.com/carillonhq/carillon/pkg/internal/version"
	"github.com/carillonhq/carillon/pkg/task"
)

// withPages adds the pages of the Web UI to the API, and makes both see the addresses of clients behind trusted proxies. A
// node without the role api has no pages.
func (n *Node) withPages(api http.Handler) (http.Handler, error) {
	if !n.cfg.servesAPI() {
		return api, nil
	}

	proxies, err := parseTrustedProxies(n.cfg.TrustedProxies)
	if err != nil {
		return nil, err
	}

	pages, err := ui.New(ui.Config{
		API: api, Access: n.access, Key: n.store.LoginKey, Cluster: n.cluster.ID, Node: n.cfg.Name, Version: version.Get(), Origin: n.cfg.UIOrigin, Now: n.env.Now,
		Ends: n.http.closing, Logger: n.log,
	})
	if err != nil {
		return nil, err
	}

	return proxies.wrap(pages), nil
}

// validateOIDC checks the settings of logins with OpenID Connect providers. It reads no files.
func (c *Config) validateOIDC() error {
	if err := oidclogin.ValidateProviders("oidc", c.OIDC); err != nil {
		return err
	}
	if len(c.OIDC) == 0 || !c.servesAPI() || c.UIOrigin != "" {
		return nil
	}

	if host, _, err := net.SplitHostPort(c.Listen); err == nil && isLoopback(host) {
		return nil
	}

	return task.Invalid(task.CodeRequired, "ui_origin", "is required with oidc unless the API listens on loopback: the URL of the Web UI, to which providers send browsers back")
}

// validateOrigin checks ui_origin: the address of the Web UI as browsers know it.
func (c *Config) validateOrigin() error {
	if c.UIOrigin == "" {
		return nil
	}

	u, err := url.Parse(c.UIOrigin)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || c.UIOrigin != u.Scheme+"://"+u.Host {
		return task.Invalid(task.CodeBadValue, "ui_origin", "%s is not an address such as https://carillon.example.com", task.Quote(c.UIOrigin))
	}

	return nil
}

// secretFaults reads the files with the client secrets of providers, and returns what is wrong with them.
func (c *Config) secretFaults() (faults []error) {
	for i := range c.OIDC {
		if _, err := c.OIDC[i].ReadSecret(); err != nil {
			faults = append(faults, task.Invalid(task.CodeBadValue, fmt.Sprintf("oidc[%d].client_secret_file", i), "%v", err))
		}
	}

	return faults
}

// newLogins returns the logins with the node's OpenID Connect providers; nil if it has none. It contacts no provider and
// reads nothing from etcd, so a node starts without them.
func (n *Node) newLogins() (*oidclogin.Logins, error) {
	if len(n.cfg.OIDC) == 0 || !n.cfg.servesAPI() {
		return nil, nil
	}
	if err := errors.Join(n.cfg.secretFaults()...); err != nil {
		return nil, err
	}

	return oidclogin.New(oidclogin.Config{Providers: n.cfg.OIDC, Key: n.store.LoginKey, Now: n.env.Now, Logger: n.log}), nil
}

// loginRedirect returns the URL at which browsers arrive with the answers of a provider: at ui_origin, or at the address on
// which the API listens on loopback.
func (n *Node) loginRedirect(provider string) (string, error) {
	if n.cfg.UIOrigin != "" {
		return n.cfg.UIOrigin + client.LoginCallbackPath(provider), nil
	}

	addr, err := n.listeners.tcp.listeningAddr()
	if err != nil {
		return "", fmt.Errorf("the API does not listen: %w", err)
	}

	host, _, err := net.SplitHostPort(addr.String())
	if err != nil || !isLoopback(host) {
		return "", errors.New("set ui_origin to the address of the Web UI")
	}

	return n.cfg.urlScheme() + "://" + addr.String() + client.LoginCallbackPath(provider), nil
}
