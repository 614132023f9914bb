package api

import (
	"net/http"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

const toUpgrade = "run this version on all nodes, then: carillon cluster upgrade"

// allowed refuses what the format of the cluster's records has no room for.
func (s *server) allowed(spec *task.Spec) error {
	writes := s.Store.Format()
	if writes >= store.NewestFormat {
		return nil
	}
	needs, field := store.FormatOf(spec)
	if needs <= writes {
		return nil
	}
	return fail(http.StatusConflict, client.CodeConflict, "this takes format %d of the cluster's records, and nodes write %d: some would fire the task otherwise",
		needs, writes).withHint(toUpgrade).withField(field)
}
