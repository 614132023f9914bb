package ask

import (
	"net/http"
	"reflect"

	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
)

// Routes returns the operation with which nodes ask each other.
func (a *Asker) Routes() []*httpapi.Operation {
	return []*httpapi.Operation{
		{ID: "ask-owner", Forwarded: true, Method: http.MethodGet, Path: askPath, Tag: "cluster", Summary: "Ask a node about the tasks of its shards; only for other nodes",
			Description: "The node that receives the request of a caller asks the owners of all shards, and merges their answers.",
			Status:      200, Answer: reflect.TypeFor[readmodel.NodeAnswer](), Errors: []int{429}, Handler: httpapi.Query(a.answerNode)},
	}
}

// checkRights refuses a question of another node about what the access records of this node do not let its caller read.
// Then one of the two nodes does not know a change yet, and an answer would be wrong, or would lack something.
func checkRights(rights *httpapi.Rights, q *Question) error {
	kinds := []access.Kind{access.Tasks}
	if q.AboutRuns() {
		kinds = append(kinds, access.Runs)
	}

	for _, k := range kinds {
		switch {
		case q.Namespace != "":
			if err := rights.CheckForwarded(k, []string{q.Namespace}); err != nil {
				return err
			}
		default:
			if err := rights.CheckForwarded(k, q.Within); err != nil {
				return err
			}
		}
	}

	return nil
}
