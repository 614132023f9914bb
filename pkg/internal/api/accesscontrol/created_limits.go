package accesscontrol

import (
	"fmt"
	"iter"
	"net/http"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
)

// Limits of roles and bindings. Every node that serves the API has all of them in memory, and compiles them again after
// each change.
const (
	// maxBindings is the maximum number of bindings in the cluster.
	maxBindings = 2000
	// reservedBindings is how many of them only administrators of the cluster can create. Whoever may grant rights can
	// create further subjects, each with its own maxCreated, and they must not keep an administrator from granting.
	reservedBindings = 200
	// maxCreated is the maximum number of bindings, and of roles, that were created by one subject that does not
	// administer the cluster.
	maxCreated = 500
)

// checkBindingCount refuses a new binding if the cluster has too many.
func (h *bindingHandlers) checkBindingCount(c *httpapi.Call, v *authority.View) error {
	n, rule := len(v.Bindings()), ""

	switch unreserved := maxBindings - reservedBindings; {
	case n >= maxBindings:
		rule = fmt.Sprintf("at most %d are allowed", maxBindings)
	case n >= unreserved && !v.Administers(caller(c), h.now()):
		rule = fmt.Sprintf("after %d, only an administrator of the cluster can create more", unreserved)
	default:
		return nil
	}

	return httpapi.Fail(http.StatusConflict, client.CodeConflict, "the cluster has %d bindings; %s", n, rule).
		WithHint("delete bindings that are no longer used")
}

// checkCreated refuses a new record if the caller has created too many of its kind. createdBy has the creators of those
// that exist.
func (r *records) checkCreated(c *httpapi.Call, v *authority.View, kind string, createdBy iter.Seq[string]) error {
	if v.Administers(caller(c), r.now()) {
		return nil
	}

	who, created := httpapi.CallerOf(c.Context()), 0
	for by := range createdBy {
		if wasWrittenBy(by, who.Who) {
			created++
		}
	}
	if created < maxCreated {
		return nil
	}

	return httpapi.Fail(http.StatusConflict, client.CodeConflict, "%s has created %d %s that still exist; at most %d are allowed", who.Name(), created, kind, maxCreated).
		WithHint("delete those that are no longer used")
}

// creators yields who has created each record of a list.
func creators[T any](list []T, createdBy func(T) string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, r := range list {
			if !yield(createdBy(r)) {
				return
			}
		}
	}
}

// wasWrittenBy reports whether a record says that a subject wrote it. Records have the format of
// httpapi.Caller.Actor: the subject, and then its token.
func wasWrittenBy(by, subject string) bool {
	name := httpapi.Caller{Who: subject}.Name()
	return by == name || strings.HasPrefix(by, name+" (")
}
