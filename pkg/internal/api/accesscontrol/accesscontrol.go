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
//
// Each kind of record has a handler type of its own, in a file of its own, with its routes. All of them share records, which
// changes access records within the caller's rights.
package accesscontrol

import (
	"context"
	"reflect"
	"slices"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/oidclogin"
	"github.com/carillonhq/carillon/pkg/store"
)

// Keeper has the access records (see package authority).
type Keeper interface {
	// Current returns the records as of a linearizable read.
	Current(ctx context.Context) (*authority.View, error)
	// Await returns the first view for which is returns true.
	Await(ctx context.Context, is func(*authority.View) bool) (*authority.View, error)
}

// Config is what the handlers of access records and audit records need.
type Config struct {
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
}

// Handlers serve access records and audit records. They are safe for concurrent use. Each kind of record has handlers of its
// own.
type Handlers struct {
	rights     rightsHandlers
	roles      roleHandlers
	bindings   bindingHandlers
	namespaces namespaceHandlers
	nodeLimits nodeLimitHandlers
	tokens     tokenHandlers
	sessions   sessionHandlers
	subjects   subjectHandlers
	audit      auditHandlers
	reset      resetHandlers
}

// New returns the handlers.
func New(cfg Config) *Handlers {
	r := &records{store: cfg.Store, keeper: cfg.Keeper, now: cfg.Now}
	guard := &tokenGuard{now: cfg.Now, clockFault: cfg.ClockFault}

	return &Handlers{
		rights:     rightsHandlers{r},
		roles:      roleHandlers{r},
		bindings:   bindingHandlers{r},
		namespaces: namespaceHandlers{records: r, mostScanned: cfg.MostScanned},
		nodeLimits: nodeLimitHandlers{r},
		tokens:     tokenHandlers{records: r, guard: guard, node: cfg.Node},
		sessions:   sessionHandlers{records: r, guard: guard},
		subjects:   subjectHandlers{r},
		audit:      auditHandlers{records: r, mostScanned: cfg.MostScanned},
		reset:      resetHandlers{records: r, log: cfg.Log},
	}
}

// Routes returns the operations on access records and audit records. Those without a verb ask for what they need when they
// know what is changed.
func (h *Handlers) Routes() []*httpapi.Operation {
	return slices.Concat(h.rights.Routes(), h.roles.Routes(), h.bindings.Routes(), h.namespaces.Routes(), h.nodeLimits.Routes(), h.tokens.Routes(),
		h.sessions.Routes(), h.subjects.Routes(), h.audit.Routes(), h.reset.Routes())
}

// StartSession creates the session of a person whom an OpenID Connect provider has identified. The call must be one of that
// person (see httpapi.Call.Become).
func (h *Handlers) StartSession(c *httpapi.Call, id oidclogin.Identity) (client.NewToken, error) {
	return h.sessions.startSession(c, id)
}

const dryRunAbout = " With dry_run=true, the request is validated but nothing is written. dry_run in the answer contains the changes, so you must have the right to read the record if it exists."

// jsonBody describes a JSON body of a type.
func jsonBody(of reflect.Type) *httpapi.Body {
	return &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: of}
}
