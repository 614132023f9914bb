package accesscontrol

import (
	"net/http"
	"reflect"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/task"
)

const (
	setRoleAbout = "You must hold all rights that the new rules give, in each binding of the role. A role that is deleted and created again is a different role: earlier bindings do not apply to it."
	setBindAbout = "Requires grant on the bindings of each namespace of the binding, before and after the change, or on access if it applies to the cluster. " +
		"You must hold all rights that it gives, for at least as long."
	listBindAbout = "Lists the bindings of namespaces whose bindings you may read, and those of the cluster if you may read access."
	dryRunAbout   = " With dry_run=true, the request is validated but nothing is written. dry_run in the answer contains the changes, so you must have the right to read the record if it exists."
	setNSAbout    = "Tasks of the namespace may use only what the record lists. The answer names the tasks that it no longer allows: their runs fail until the tasks are changed."
	setLimitAbout = "The name is that of a node, or a prefix of names that ends in *; the limit with the longest match applies to a node. " +
		"Labels that a node announces and its limit does not list do not count for the selectors of tasks and namespaces. The answer names the nodes that announce such labels now, if you may read nodes."
	newTokenAbout = "For tokens of your own subject you need no right, but your own token must have no scope and be no session. Tokens of other subjects require grant on access or, for service:NAME, grant on the bindings of the namespaces in the scope and of all others in which the service has rights. " +
		"You must hold the whole scope of such a token until it ends. Only this answer contains the secret."
	delTokenAbout   = "No change that its holder has requested is made afterwards. This works while etcd is full. The sessions of the token end with it. Of its own subject's tokens, a session or a token with a scope can delete only itself."
	newSessionAbout = "A session is a token for a browser. It may do what your token may, ends after eight hours or when your token does, and is not accepted after your token was deleted. " +
		"A token has at most 20 sessions; another one ends the oldest. A session cannot create sessions. Only this answer contains the secret."
	newLinkAbout  = "A login link is a token that does nothing but become a session of your token, once, within ten minutes. path is what to open in a browser. A token has at most 20 login links; another one replaces the oldest."
	useLinkAbout  = "The credential of the request must be the secret of the login link. It is deleted in the transaction that creates the session."
	auditLogAbout = "Each transaction of the API writes one record of who changed what. The newest record comes first. Without read on audit, you see only changes of objects in namespaces whose bindings you may read. " +
		"A page may have fewer records than its limit, or none, and still have a next page. /v1/audit is unrelated: it checks the consistency of the cluster's records."
	resetAbout = "Creates a new token of service:bootstrap that does not expire, and gives this subject the role admin in the cluster. Only root on the node's host may do this, over the node's unix socket and without a token."
)

// Routes returns the operations on access records and audit records. Those without a verb ask for what they need when they
// know what is changed.
func (h *Handlers) Routes() []*httpapi.Operation {
	var (
		role, binding, ns = reflect.TypeFor[task.Role](), reflect.TypeFor[task.Binding](), reflect.TypeFor[task.Namespace]()
		subject, limit    = reflect.TypeFor[client.SubjectChange](), reflect.TypeFor[task.NodeLimit]()
		body              = func(of reflect.Type) *httpapi.Body {
			return &httpapi.Body{Types: []string{httpapi.TypeJSON}, Of: of}
		}
	)

	const get, post, put, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete

	return []*httpapi.Operation{
		{ID: "whoami", Method: get, Path: "/v1/whoami", Tag: "access", Summary: "Read your identity and your rights",
			Status: 200, Answer: reflect.TypeFor[client.WhoAmI](), Handler: httpapi.NoQuery(h.whoAmI)},

		{ID: "can", Method: get, Path: "/v1/access/can", Tag: "access", Summary: "Check whether you or another subject may do something", Description: canAbout,
			Status: 200, Answer: reflect.TypeFor[client.Decision](), Handler: httpapi.Query(h.can)},

		{ID: "list-roles", Method: get, Path: "/v1/roles", Tag: "access", Summary: "List the roles, the built-in ones first",
			Description: "Requires read on access, or on the bindings of a namespace.", Status: 200, Answer: reflect.TypeFor[client.List[task.Role]](), Handler: httpapi.NoQuery(h.listRoles)},
		{ID: "get-role", Method: get, Path: "/v1/roles/{role}", Tag: "access", Summary: "Read a role",
			Status: 200, Answer: role, Tagged: true, Handler: httpapi.NoQuery(h.getRole)},
		{ID: "set-role", Verb: access.Grant, Kind: access.Access, Method: put, Path: "/v1/roles/{role}", Tag: "access", Summary: "Create or replace a role", Description: setRoleAbout + dryRunAbout,
			Body: body(role), Conditional: true, Creates: true, Writes: true, Status: 200, Answer: reflect.TypeFor[client.RoleChange](), Tagged: true, Errors: []int{409, 429}, Handler: httpapi.Query(h.setRole)},
		{ID: "delete-role", Verb: access.Grant, Kind: access.Access, Method: del, Path: "/v1/roles/{role}", Tag: "access", Summary: "Delete a role that no binding uses",
			Conditional: true, Writes: true, Status: 204, Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.deleteRole)},

		{ID: "list-bindings", Method: get, Path: "/v1/bindings", Tag: "access", Summary: "List the bindings that you may see", Description: listBindAbout,
			Status: 200, Answer: reflect.TypeFor[client.List[task.Binding]](), Handler: httpapi.Query(h.listBindings)},
		{ID: "get-binding", Method: get, Path: "/v1/bindings/{binding}", Tag: "access", Summary: "Read a binding",
			Status: 200, Answer: binding, Tagged: true, Handler: httpapi.NoQuery(h.getBinding)},
		{ID: "set-binding", Method: put, Path: "/v1/bindings/{binding}", Tag: "access", Summary: "Create or replace a binding", Description: setBindAbout,
			Body: body(binding), Conditional: true, Creates: true, Writes: true, Status: 200, Answer: binding, Tagged: true, Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.setBinding)},
		{ID: "delete-binding", Method: del, Path: "/v1/bindings/{binding}", Tag: "access", Summary: "Delete a binding",
			Conditional: true, Writes: true, Status: 204, Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.deleteBinding)},

		{ID: "list-namespaces", Method: get, Path: "/v1/namespaces", Tag: "access", Summary: "List the namespaces that you may read",
			Status: 200, Answer: reflect.TypeFor[client.List[task.Namespace]](), Handler: httpapi.Query(h.listNamespaces)},
		{ID: "get-namespace", Method: get, Path: httpapi.InNamespace, Tag: "access", Summary: "Read the record of a namespace: what its tasks may use",
			Status: 200, Answer: ns, Tagged: true, Handler: httpapi.NoQuery(h.getNamespace)},
		{ID: "set-namespace", Method: put, Path: httpapi.InNamespace, Tag: "access", Summary: "Create or replace the record of a namespace", Description: setNSAbout + dryRunAbout,
			Body: body(ns), Conditional: true, Creates: true, Writes: true, Status: 200, Answer: reflect.TypeFor[client.NamespaceChange](), Tagged: true, Errors: []int{409, 429},
			Handler: httpapi.Query(h.setNamespace)},
		{ID: "delete-namespace", Verb: access.Delete, Kind: access.Namespaces, Method: del, Path: httpapi.InNamespace, Tag: "access", Summary: "Delete the record of a namespace that has neither tasks nor secrets",
			Conditional: true, Writes: true, Status: 204, Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.deleteNamespace)},

		{ID: "list-node-limits", Verb: access.Read, Kind: access.Nodes, Method: get, Path: "/v1/node-limits", Tag: "access", Summary: "List the limits of the labels of nodes",
			Status: 200, Answer: reflect.TypeFor[client.List[task.NodeLimit]](), Handler: httpapi.Query(h.listNodeLimits)},
		{ID: "get-node-limit", Verb: access.Read, Kind: access.Nodes, Method: get, Path: "/v1/node-limits/{limit}", Tag: "access", Summary: "Read the limit of the labels of a node, or of the nodes with a prefix",
			Status: 200, Answer: limit, Tagged: true, Handler: httpapi.NoQuery(h.getNodeLimit)},
		{ID: "set-node-limit", Verb: access.Grant, Kind: access.Access, Method: put, Path: "/v1/node-limits/{limit}", Tag: "access", Summary: "Limit which labels nodes may have", Description: setLimitAbout + dryRunAbout,
			Body: body(limit), Conditional: true, Creates: true, Writes: true, Status: 200, Answer: reflect.TypeFor[client.NodeLimitChange](), Tagged: true, Errors: []int{409, 429}, Handler: httpapi.Query(h.setNodeLimit)},
		{ID: "delete-node-limit", Verb: access.Grant, Kind: access.Access, Method: del, Path: "/v1/node-limits/{limit}", Tag: "access", Summary: "Delete a limit of the labels of nodes",
			Conditional: true, Writes: true, Status: 204, Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.deleteNodeLimit)},

		{ID: "list-tokens", Method: get, Path: "/v1/tokens", Tag: "access", Summary: "List the tokens that you may see, without their secrets",
			Description: "Lists the tokens of your own subject, and those whose scope lies in namespaces whose bindings you may read. If you may read access, lists all tokens. Sessions and login links are listed with sessions=true.",
			Status:      200, Answer: reflect.TypeFor[client.List[task.Token]](), Handler: httpapi.Query(h.listTokens)},
		{ID: "create-token", Method: post, Path: "/v1/tokens", Tag: "access", Summary: "Create a token", Description: newTokenAbout,
			Body: body(reflect.TypeFor[client.TokenRequest]()), Writes: true, Status: 201, Answer: reflect.TypeFor[client.NewToken](), Errors: []int{404, 409}, Handler: httpapi.NoQuery(h.createToken)},
		{ID: "get-token", Method: get, Path: "/v1/tokens/{token}", Tag: "access", Summary: "Read a token, without its secret",
			Status: 200, Answer: reflect.TypeFor[task.Token](), Handler: httpapi.NoQuery(h.getToken)},
		{ID: "delete-token", Method: del, Path: "/v1/tokens/{token}", Tag: "access", Summary: "Delete a token", Description: delTokenAbout,
			Writes: true, Status: 204, Errors: []int{409}, Handler: httpapi.NoQuery(h.deleteToken)},

		{ID: "create-session", Method: post, Path: "/v1/sessions", Tag: "access", Summary: "Create a session of your token", Description: newSessionAbout,
			Writes: true, Status: 201, Answer: reflect.TypeFor[client.NewToken](), Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.createSession)},
		{ID: "delete-session", Method: del, Path: "/v1/sessions/current", Tag: "access", Summary: "End the session of this request: log out",
			Description: "No change that the session has requested is made afterwards. This works while etcd is full.",
			Writes:      true, Status: 204, Errors: []int{409}, Handler: httpapi.NoQuery(h.deleteSession)},
		{ID: "create-login-link", Method: post, Path: "/v1/login-links", Tag: "access", Summary: "Create a login link of your token", Description: newLinkAbout,
			Writes: true, Status: 201, Answer: reflect.TypeFor[client.LoginLink](), Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.createLink)},
		{ID: "use-login-link", Method: post, Path: "/v1/login-links:use", Tag: "access", Summary: "Turn a login link into a session", Description: useLinkAbout,
			TakesLink: true, Writes: true, Status: 201, Answer: reflect.TypeFor[client.NewToken](), Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.useLink)},

		{ID: "list-subjects", Verb: access.Read, Kind: access.Access, Method: get, Path: "/v1/subjects", Tag: "access", Summary: "List the subjects that have bindings or tokens, or are disabled",
			Status: 200, Answer: reflect.TypeFor[client.List[client.Subject]](), Handler: httpapi.Query(h.listSubjects)},
		{ID: "disable-subject", Verb: access.Grant, Kind: access.Access, Method: post, Path: "/v1/subjects/{subject}/disable", Tag: "access", Summary: "Disable a subject, so that it may do nothing",
			Description: "Its tokens are no longer accepted, and its streams end. Its tasks continue, because they belong to their namespaces. The answer lists its bindings and tokens, and those that it created for others.",
			Writes:      true, Status: 200, Answer: subject, Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.disableSubject)},
		{ID: "enable-subject", Verb: access.Grant, Kind: access.Access, Method: post, Path: "/v1/subjects/{subject}/enable", Tag: "access", Summary: "Enable a subject that was disabled",
			Description: "You must hold all rights that the subject regains.",
			Writes:      true, Status: 200, Answer: subject, Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.enableSubject)},

		{ID: "list-audit-records", Method: get, Path: "/v1/audit-log", Tag: "access", Summary: "List audit records: who changed what", Description: auditLogAbout,
			Status: 200, Answer: reflect.TypeFor[client.List[task.AuditRecord]](), Handler: httpapi.Query(h.listAudit)},
		{ID: "reset-access", Method: post, Path: "/v1/access/reset", Tag: "access", Summary: "Create a new administrator, as root on the node's host", Description: resetAbout,
			Writes: true, Status: 201, Answer: reflect.TypeFor[client.NewToken](), Errors: []int{409, 429}, Handler: httpapi.NoQuery(h.resetAccess)},
	}
}
