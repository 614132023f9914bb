// Package accesscontrol contains the API handlers for who may do what (roles, bindings, namespaces, tokens and subjects),
// and for the audit records of who changed what.
//
// It guarantees that
//   - nobody gives more than they hold: a binding, a role or a token is written only if each part of it lies within what
//     its writer may do, judged again before each attempt of the write, by the records that the write compares,
//   - no change leaves the cluster without an administrator who can act now (see access.Table.LastAdmin), unless
//     there is none already; except that two administrators who delete each other's last token at the same moment can both
//     succeed, because deleting a token does not touch the fence,
//   - the secret of a token is in the answer to its creation only,
//   - what a caller may not see is answered like what does not exist, and is in no list and no count.
//
// Reads are linearizable: they use the node's copy of the records after a read of etcd has proven it current. Roles,
// bindings, namespaces and disabled subjects are written together with the fence, at most ten times a second in the whole
// cluster; more are refused with 429. Two of the ten are reserved for callers with grant on access, and the subjects of
// other callers have three each (see record.FenceWrites).
package accesscontrol

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// Keeper has the access records (see package authority).
type Keeper interface {
	// Current returns the records as of a linearizable read.
	Current(ctx context.Context) (*authority.View, error)
	// Await returns the first view for which is returns true.
	Await(ctx context.Context, is func(*authority.View) bool) (*authority.View, error)
}

// Handlers serve access records and audit records. They are safe for concurrent use.
type Handlers struct {
	Store  *store.Store
	Keeper Keeper
	Node   string // the name of this node
	Now    httpapi.Clock
	// ClockFault returns an error if this node's clock cannot be trusted. Tokens that expire are neither accepted nor
	// created then.
	ClockFault func() error
	// MostScanned is the maximum number of records that one request reads to find matching ones.
	MostScanned int
	Log         *zap.Logger

	tokenChanges httpapi.SubjectRate // creations and deletions of tokens
}

// settleWithin limits how long a change waits until this node knows it.
const settleWithin = 2 * time.Second

// change makes a change of access records: f judges it by the newest records and writes it with the rights that it gets.
// f is called again if the records have changed meanwhile.
func (h *Handlers) change(c *httpapi.Call, f func(v *authority.View, rights *httpapi.Rights) error) error {
	return tooMany(httpapi.RetryConflict(c.Context(), func() error {
		v, err := h.Keeper.Current(c.Context())
		if err != nil {
			return err
		}

		return f(v, c.Rights().Part())
	}))
}

// tooMany says in the API's words that access records were changed too often.
func tooMany(err error) error {
	if !errors.Is(err, task.ErrTooMany) {
		return err
	}

	return httpapi.Fail(http.StatusTooManyRequests, client.CodeRateLimited, "access records were changed too often within the last second, by you or in the whole cluster").
		WithHint("try again in a second").Because(err)
}

// settle waits until this node knows a change, so that the next request that it receives is judged by it. The change has
// been made: if the wait ends without success, other requests may be judged by the records before it for a moment.
func (h *Handlers) settle(c *httpapi.Call, is func(v *authority.View) bool) {
	ctx, cancel := context.WithTimeout(c.Context(), settleWithin)
	defer cancel()
	_, _ = h.Keeper.Await(ctx, is)
}

// caller returns the caller as access records know it.
func caller(c *httpapi.Call) access.Caller { return httpapi.CallerOf(c.Context()).Subject() }

// allows reports whether the caller may do something, by the records of a view.
func (h *Handlers) allows(c *httpapi.Call, v *authority.View, verb access.Verb, k access.Kind, namespace string) bool {
	return v.Allows(caller(c), access.Need{Verb: verb, Kind: k, Namespace: namespace}, h.Now())
}

// allowsInEach reports whether the caller may do something to the bindings of each of the namespaces. A prefix that ends in
// * is covered only by a prefix: no name contains *.
func (h *Handlers) allowsInEach(c *httpapi.Call, v *authority.View, verb access.Verb, namespaces []string) bool {
	for _, ns := range namespaces {
		if !h.allows(c, v, verb, access.Bindings, ns) {
			return false
		}
	}

	return len(namespaces) > 0
}

// readsBindingsSomewhere reports whether the caller may read the bindings of at least one namespace.
func (h *Handlers) readsBindingsSomewhere(c *httpapi.Call, v *authority.View) bool {
	for _, ns := range v.Namespaces() {
		if h.allows(c, v, access.Read, access.Bindings, ns) {
			return true
		}
	}

	return false
}

// refuseExcess returns the error for a grant of more than its author holds; nil if there is no excess.
func refuseExcess(c *httpapi.Call, e *access.Excess, err error) error {
	if err != nil || e == nil {
		return err
	}

	where := "in the cluster"
	if e.Namespace != "" {
		where = "in namespace " + e.Namespace
	}

	return httpapi.Fail(http.StatusForbidden, client.CodeTooBroad, "%s cannot grant a right that it does not have itself, with these labels and until this time: %s on %s %s",
		httpapi.CallerOf(c.Context()).Name(), e.Verb, e.Kind, where)
}

// keepAdmin has the writes of rights fail if they would leave nobody who can administer the cluster. after reports whether
// that would be so. If nobody can already, nothing is refused.
func (h *Handlers) keepAdmin(rights *httpapi.Rights, after func(v *authority.View) bool) error {
	return rights.Check(func(v *authority.View) error {
		if v.LastAdmin(h.Now(), func(string, string) bool { return false }) || !after(v) {
			return nil
		}

		return httpapi.Fail(http.StatusConflict, client.CodeLastAdmin,
			"the cluster would have no administrator: an enabled subject with the role admin in the cluster, and with a valid token without a scope or a client certificate").
			WithHint("first give the role admin in the cluster to another subject, and create a token for it")
	})
}

// checkConditions compares If-Match and If-None-Match with a record's revision; 0: there is no record.
func checkConditions(c *httpapi.Call, what, name string, revision int64) error {
	switch {
	case c.IfNoneMatch && revision > 0:
		return fmt.Errorf("%s %s: %w", what, name, task.ErrExists)
	case c.IfMatch != 0 && revision == 0:
		return notFound(what, name)
	case c.IfMatch != 0 && c.IfMatch != revision:
		return fmt.Errorf("%s %s is at revision %d: %w, %d", what, name, revision, task.ErrStale, c.IfMatch)
	}

	return nil
}

func notFound(what, name string) error { return fmt.Errorf("%s %s: %w", what, name, task.ErrNotFound) }

// pathName returns a name in the path after checking it.
func pathName(c *httpapi.Call, param string) (string, error) {
	name := c.Request.PathValue(param)
	return name, task.CheckName(param, name)
}

// sameName refuses a body that names another object than the path. An absent name is that of the path.
func sameName(in *string, path string) error {
	if *in != "" && *in != path {
		return task.Invalid(task.CodeBadValue, "name", "%s does not match the name in the path, %s", task.Quote(*in), path)
	}
	*in = path

	return nil
}

// answerRecord answers with a record and its revision.
func answerRecord(body any, revision int64) (httpapi.Answer, error) {
	a := httpapi.Answer{Status: http.StatusOK, Body: body}
	if revision > 0 {
		a.Header = http.Header{"Etag": {httpapi.ETag(revision)}}
	}

	return a, nil
}

// pageOf answers with the page of a list that is in the memory of this node. key returns what the list is sorted by.
func pageOf[T any](c *httpapi.Call, q httpapi.PageQuery, list []T, key func(T) string) (httpapi.Answer, error) {
	p, err := c.Paging(q)
	if err != nil {
		return httpapi.Answer{}, err
	}

	var items []T
	for _, item := range list {
		if p.After != "" && key(item) <= p.After {
			continue
		}
		if len(items) == p.Limit {
			return httpapi.Page(c, p, items, key(items[len(items)-1]))
		}
		items = append(items, item)
	}

	return httpapi.Page(c, p, items, "")
}
