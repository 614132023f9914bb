package daemon

import (
	"net/http"

	"github.com/carillonhq/carillon/pkg/internal/ui"
)

// withPages adds the pages of the Web UI to the API. A node without the role api has none.
func (n *Node) withPages(api http.Handler) (http.Handler, error) {
	if !n.cfg.servesAPI() {
		return api, nil
	}

	return ui.New(ui.Config{
		API: api, Access: n.access, Cluster: n.cluster.ID, Node: n.cfg.Name, Version: Version(), Origin: n.cfg.UIOrigin, Now: n.env.Now,
		Ends: n.http.closing, Logger: n.log,
	})
}
