package daemon

import (
	"net/http"

	"github.com/carillonhq/carillon/pkg/internal/ui"
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
		API: api, Access: n.access, Key: n.store.LoginKey, Cluster: n.cluster.ID, Node: n.cfg.Name, Version: Version(), Origin: n.cfg.UIOrigin, Now: n.env.Now,
		Ends: n.http.closing, Logger: n.log,
	})
	if err != nil {
		return nil, err
	}

	return proxies.wrap(pages), nil
}
