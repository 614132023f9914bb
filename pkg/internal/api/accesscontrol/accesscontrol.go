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
// changes access records within the caller's rights. Roles, bindings, namespaces and node limits are a resource, which
// serves reads and writes of all four in the same way.
package accesscontrol

import (
	"context"
	"net/http"
	"reflect"
	"slices"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/internal/oidclogin"
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

// Config is what the handlers of access records and audit records need.
type Config struct {
	Store  *store.Store
	Keeper Keeper
	Node   string // the name of this node
	// Address returns the URL at which browsers reach this node's API; "" while there is none.
	Address func() string
	Now     httpapi.Clock
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
	roles      *roleHandlers
	bindings   *bindingHandlers
	namespaces *namespaceHandlers
	nodeLimits *nodeLimitHandlers
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
	bindings := newBindingHandlers(r)

	return &Handlers{
		rights:     rightsHandlers{r},
		roles:      newRoleHandlers(r),
		bindings:   bindings,
		namespaces: newNamespaceHandlers(r, cfg.MostScanned),
		nodeLimits: newNodeLimitHandlers(r),
		tokens:     tokenHandlers{records: r, guard: guard, node: cfg.Node},
		sessions:   sessionHandlers{records: r, guard: guard, node: cfg.Node, address: cfg.Address},
		subjects:   subjectHandlers{r},
		audit:      auditHandlers{records: r, maxScanned: cfg.MostScanned},
		reset:      resetHandlers{records: r, bindings: bindings, log: cfg.Log},
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

// resetHandlers give the cluster an administrator again.
type resetHandlers struct {
	*records
	bindings *bindingHandlers
	log      *zap.Logger
}

const resetAbout = "Creates a new token of service:bootstrap that does not expire, and gives this subject the role admin in the cluster. Only root on the node's host may do this, over the node's unix socket and without a token."

// Routes returns the operations that reset access.
func (h *resetHandlers) Routes() []*httpapi.Operation {
	return []*httpapi.Operation{
		{ID: "reset-access", Method: http.MethodPost, Path: "/v1/access/reset", Tag: "access", Summary: "Create a new administrator, as root on the node's host", Description: resetAbout,
			Writes: true, Status: 201, Answer: reflect.TypeFor[client.NewToken](), Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.resetAccess)},
	}
}

// bootstrapName is the name of the service that the first token of a cluster acts as, and of its binding.
const bootstrapName = "bootstrap"

// resetAccess gives the cluster an administrator again. Only root on the host of this node may call it, because root
// could also read the node's credentials for etcd. Each step can be repeated, so a failed reset can be called again.
func (h *resetHandlers) resetAccess(c *httpapi.Call) (httpapi.Answer, error) {
	if !httpapi.CallerOf(c.Context()).IsHostRoot() {
		return httpapi.Answer{}, httpapi.Fail(http.StatusForbidden, client.CodeForbidden, "only root on the host of a node may reset access, over the node's unix socket and without a token").
			WithHint("run carillon access reset as root on that host")
	}

	const reason = "carillon access reset"
	h.log.Warn("access is being reset by root on this host")

	subject := access.KindService + ":" + bootstrapName
	need := access.Need{Verb: access.Grant, Kind: access.Access}

	err := h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		if !v.Disabled(subject) {
			return nil
		}
		if err := rights.Require(need); err != nil {
			return err
		}

		rights.Because(reason)

		return h.store.As(rights).EnableSubject(c.Context(), subject, v.Mod(h.store.Keys().DisabledSubject(subject)), h.now())
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	err = h.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		if err := rights.Require(need); err != nil {
			return err
		}

		now := h.now.Stamp()
		b := task.Binding{
			Name: bootstrapName, Role: access.RoleAdmin, RoleUID: access.BuiltInUID, Subjects: []string{subject}, Cluster: true, Reason: reason,
			CreatedAt: now, CreatedBy: c.Actor(), UpdatedAt: now, UpdatedBy: c.Actor(),
		}
		old, ok := v.Binding(bootstrapName)
		rights.Because(reason)
		rights.Describe(h.bindings.describe(bootstrapName, existing(ok, &old), &b))
		_, err := h.store.As(rights).PutBinding(c.Context(), old.Revision, b, h.now())

		return httpapi.About("binding "+bootstrapName, err)
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	secret, t := authority.NewSecret()
	t.Subject, t.Reason, t.CreatedAt, t.CreatedBy = subject, reason, h.now.Stamp(), c.Actor()
	err = h.changeRecords(c, func(_ *authority.View, rights *httpapi.Rights) error {
		if err := rights.Require(need); err != nil {
			return err
		}

		rights.Because(reason)
		rights.Describe(store.DescribeToken(nil, &t.Token))

		return httpapi.About(t.ID, h.store.As(rights).CreateToken(c.Context(), t))
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	h.awaitView(c, func(v *authority.View) bool { return v.Created(t.ID) > 0 })
	h.log.Warn("access was reset: created a token for a new administrator", zap.String("subject", subject), zap.String("token", t.ID))

	return httpapi.Answer{Status: http.StatusCreated, Body: client.NewToken{Token: t.Token, Secret: secret}}, nil
}
