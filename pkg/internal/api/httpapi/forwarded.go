package httpapi

import (
	"net/http"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
)

// CheckForwarded refuses a request of another node if the access records of this node do not let its caller read the
// objects of a kind in some namespaces; nil: in all of them. A node without access records, which does not serve the API,
// refuses nothing. The other node has judged the caller already: the two differ only while one of them does not know a
// change yet.
func (r *Rights) CheckForwarded(k access.Kind, namespaces []string) error {
	v, caller, now := r.judge.Keeper.View(), r.caller.Subject(), r.judge.Now()
	if v.Fence == 0 {
		return nil
	}

	refused := namespaces == nil && !v.ReadsEveryNamespace(caller, k, now)
	for _, ns := range namespaces {
		refused = refused || !v.Allows(caller, access.Need{Verb: access.Read, Kind: k, Namespace: ns}, now)
	}

	if refused {
		return Fail(http.StatusForbidden, client.CodeForbidden, "the access records of this node do not allow this")
	}

	return nil
}
