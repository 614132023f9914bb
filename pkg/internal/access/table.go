package access

import (
	"maps"
	"slices"
	"time"

	"github.com/carillonhq/carillon/pkg/task"
)

// Records are all access records of one revision, decoded.
type Records struct {
	Roles      []task.Role // without the built-in ones
	Bindings   []task.Binding
	Namespaces []task.Namespace
	NodeLimits []task.NodeLimit
	Tokens     []task.Token
	// Created are the create revisions of the tokens' keys, by id. They tell a session's parent from a token that was
	// created later under the same id.
	Created  map[string]int64
	Disabled []string // subjects that may do nothing
	// Fence is the mod revision of the fence's key at that revision; 0 if it is absent, and then
	// nothing is allowed: a cluster that has no fence has no access records either.
	Fence int64
}

// Table answers who may do what, by the records of one revision. It does not change, and is
// safe for concurrent use. The zero Table allows nothing.
type Table struct {
	// Fence is the mod revision of the fence's key. A transaction that the table authorises compares it.
	Fence int64

	roles    map[string]compiledRole
	bindings []task.Binding
	grants   map[string][]grant // by subject
	tokens   *tokenSet
	disabled map[string]bool

	namespaces map[string]*task.Namespace
	nodeLimits nodeLimits
}

type compiledRole struct {
	task.Role
	rules []compiledRule
}

type compiledRule struct {
	verbs  verbSet
	labels map[string]string
}

// grant is one rule of a role as a binding (or a token's scope) gives it.
type grant struct {
	verbs   verbSet
	where   []pattern // nil with cluster
	cluster bool
	labels  []label
	until   time.Time // zero: no end
}

type label struct{ key, value string }

// Compile makes the table of records. Records that do not make sense, because they were
// written by hand or by another version, allow nothing; problems says which, so that they can
// be reported. The other records count all the same.
func Compile(r Records) (t *Table, problems []error) {
	t = &Table{
		Fence: r.Fence, roles: map[string]compiledRole{}, grants: map[string][]grant{}, disabled: map[string]bool{}, namespaces: map[string]*task.Namespace{},
	}

	report := func(what, name string, err error) {
		if err != nil {
			problems = append(problems, task.Under(what+" "+task.Quote(name), err))
		}
	}

	for _, role := range BuiltInRoles() {
		compiled, err := compileRole(role)
		report("role", role.Name, err)
		t.roles[role.Name] = compiled
	}

	for _, role := range r.Roles {
		if t.roles[role.Name].BuiltIn {
			report("role", role.Name, task.Invalid(task.CodeBadName, "name", "is the name of a built-in role"))
			continue
		}

		compiled, err := compileRole(role)
		report("role", role.Name, err)
		if err == nil {
			t.roles[role.Name] = compiled
		}
	}

	for _, subject := range r.Disabled {
		t.disabled[subject] = true
	}

	for i := range r.Namespaces {
		t.namespaces[r.Namespaces[i].Name] = &r.Namespaces[i]
	}

	for _, l := range r.NodeLimits {
		report("node limit", l.Name, t.nodeLimits.add(l))
	}
	t.nodeLimits.sort()

	for _, b := range r.Bindings {
		grants, err := t.grantsOf(b)
		report("binding", b.Name, err)
		t.bindings = append(t.bindings, b)
		for _, subject := range b.Subjects {
			t.grants[subject] = append(t.grants[subject], grants...)
		}
	}

	t.grants[RootSubject] = t.everything()

	tokens := make([]TokenChange, len(r.Tokens))
	for i := range r.Tokens {
		token := &r.Tokens[i]
		tokens[i] = TokenChange{ID: token.ID, Token: token, Created: r.Created[token.ID]}
	}
	t, faults := t.WithTokens(tokens)

	return t, append(problems, faults...)
}

func compileRole(role task.Role) (compiledRole, error) {
	c := compiledRole{Role: role}
	for i, r := range role.Rules {
		set, err := parseRule(index("rules", i), r)
		if err != nil {
			return compiledRole{}, err
		}

		c.rules = append(c.rules, compiledRule{verbs: set, labels: r.Labels})
	}

	return c, nil
}

// binding is what bindings and scopes have in common.
type binding struct {
	where   []pattern
	cluster bool
	labels  map[string]string
	until   time.Time
}

// grantsOf returns what a binding gives to each of its subjects.
func (t *Table) grantsOf(b task.Binding) ([]grant, error) {
	if err := CheckBinding(&b); err != nil {
		return nil, err
	}

	rules, err := t.rulesOf("role", b.Role, b.RoleUID)
	if err != nil {
		return nil, err
	}

	return expand(rules, binding{where: parsePatterns(b.Namespaces), cluster: b.Cluster, labels: b.Labels, until: b.Until.Time}), nil
}

// scopeOf returns what a token's scope allows at most.
func (t *Table) scopeOf(s *task.TokenScope) ([]grant, error) {
	rules, err := t.rulesOf("scope.role", s.Role, s.RoleUID)
	if err != nil {
		return nil, err
	}

	return expand(rules, bindingOfScope(s)), nil
}

// bindingOfScope returns a scope in the form of a binding. A scope without namespaces includes the whole cluster.
func bindingOfScope(s *task.TokenScope) binding {
	return binding{where: parsePatterns(s.Namespaces), cluster: len(s.Namespaces) == 0, labels: s.Labels}
}

func (t *Table) rulesOf(field, name, uid string) ([]compiledRule, error) {
	role, ok := t.roles[name]
	switch {
	case !ok:
		return nil, task.Invalid(task.CodeBadValue, field, "there is no role %s", task.Quote(name))
	case role.UID != uid:
		return nil, task.Invalid(task.CodeBadValue, field, "was created for an earlier role %s, which has been deleted", task.Quote(name))
	}

	return role.rules, nil
}

func parsePatterns(namespaces []string) []pattern {
	var list []pattern
	for _, s := range namespaces {
		list = append(list, parsePattern(s))
	}

	return list
}

// expand makes the grants of a role's rules under a binding. Labels restrict what is done to
// tasks and runs, but not reading them: their readers see the whole namespace.
func expand(rules []compiledRule, b binding) []grant {
	var grants []grant
	for _, rule := range rules {
		g := grant{verbs: rule.verbs, where: b.where, cluster: b.cluster, until: b.until}
		if !b.cluster {
			for k := Namespaces; k < kinds; k++ {
				g.verbs[k] = 0
			}
		}

		if len(rule.labels)+len(b.labels) == 0 {
			grants = append(grants, g)
			continue
		}

		reads := grant{where: b.where, cluster: b.cluster, until: b.until}
		for k := range kinds {
			if k.Labelled() {
				reads.verbs[k] = g.verbs[k] & Read
				g.verbs[k] &^= Read
			} else {
				g.verbs[k] = 0
			}
		}

		if !reads.verbs.isEmpty() {
			grants = append(grants, reads)
		}

		var satisfiable bool
		if g.labels, satisfiable = joinLabels(rule.labels, b.labels); satisfiable && !g.verbs.isEmpty() {
			grants = append(grants, g)
		}
	}

	return grants
}

// joinLabels returns the labels that both sets name. It is not satisfiable if they name
// different values of one label.
func joinLabels(a, b map[string]string) (labels []label, satisfiable bool) {
	all := maps.Clone(b)
	if all == nil {
		all = map[string]string{}
	}

	for k, v := range a {
		if other, ok := b[k]; ok && other != v {
			return nil, false
		}

		all[k] = v
	}

	for _, k := range slices.Sorted(maps.Keys(all)) {
		labels = append(labels, label{k, all[k]})
	}

	return labels, true
}

// Caller is the sender of a request, as determined by authentication. It names its subject and its
// token only, so that it can be judged by a newer Table, too.
type Caller struct {
	Subject string
	Token   string // its id; "" if the caller has shown another proof of who it is
}

// Need is what a request needs: to do something to an object.
type Need struct {
	Verb      Verb
	Kind      Kind
	Namespace string            // "" for kinds of the cluster
	Labels    map[string]string // of the task; nil: none, or they do not matter
}

// acceptsToken reports whether a token may be used for this at all. A backup contains everything, also the hashes of tokens, so a
// scope could not limit what it gives away, and a session in a browser must not download it.
func (n *Need) acceptsToken(token *task.Token) bool {
	return n.Kind != Cluster || n.Verb&Backup == 0 || token.Kind == task.TokenKindToken && token.Scope == nil
}

// Allows reports whether a caller may do something now.
func (t *Table) Allows(c Caller, need Need, now time.Time) bool {
	if t.Fence == 0 || t.disabled[c.Subject] {
		return false
	}

	if c.Token != "" {
		if t.TokenProblem(c, now) != "" {
			return false
		}

		token := t.tokens.get(c.Token)
		if token.Scope != nil && !anyAllows(t.scopeGrants(token), &need, now) || !need.acceptsToken(&token.Token) {
			return false
		}
	}

	return anyAllows(t.heldBy(c), &need, now)
}

func anyAllows(grants []grant, need *Need, now time.Time) bool {
	for i := range grants {
		if grants[i].allows(need, now) {
			return true
		}
	}

	return false
}

func (g *grant) allows(need *Need, now time.Time) bool {
	return g.verbs[need.Kind]&need.Verb == need.Verb && g.reaches(need.Namespace, need.Kind) && g.lasts(now) && g.accepts(need.Labels)
}

// reaches reports whether the grant applies in a namespace, or to a kind of the cluster.
func (g *grant) reaches(namespace string, k Kind) bool {
	if g.cluster {
		return true
	}

	return !k.OfCluster() && slices.ContainsFunc(g.where, func(p pattern) bool { return p.matches(namespace) })
}

func (g *grant) lasts(now time.Time) bool { return g.until.IsZero() || now.Before(g.until) }

func (g *grant) accepts(labels map[string]string) bool {
	for _, l := range g.labels {
		if v, ok := labels[l.key]; !ok || v != l.value {
			return false
		}
	}

	return true
}

// AllowsSomewhere reports whether a caller may do something to an object with some labels: it
// tells apart callers who depend on the labels from those who have no right at all.
func (t *Table) AllowsSomewhere(c Caller, need Need, now time.Time) bool {
	if t.Allows(c, need, now) {
		return true
	}

	some := func(grants []grant) bool {
		return slices.ContainsFunc(grants, func(g grant) bool {
			return g.verbs[need.Kind]&need.Verb == need.Verb && g.reaches(need.Namespace, need.Kind) && g.lasts(now)
		})
	}

	if t.Fence == 0 || t.disabled[c.Subject] || !some(t.heldBy(c)) {
		return false
	}

	if c.Token == "" {
		return true
	}

	if t.TokenProblem(c, now) != "" {
		return false
	}

	token := t.tokens.get(c.Token)

	return (token.Scope == nil || some(t.scopeGrants(token))) && need.acceptsToken(&token.Token)
}

// ReadsEveryNamespace reports whether a caller may read objects of a kind in every namespace,
// also in those that do not exist yet.
func (t *Table) ReadsEveryNamespace(c Caller, k Kind, now time.Time) bool {
	everywhere := func(grants []grant) bool {
		return slices.ContainsFunc(grants, func(g grant) bool {
			return g.verbs[k]&Read != 0 && len(g.labels) == 0 && g.lasts(now) &&
				(g.cluster || slices.ContainsFunc(g.where, func(p pattern) bool { return p.prefix && p.text == "" }))
		})
	}

	// The namespace "" exists nowhere: only patterns that match every name match it.
	if !t.Allows(c, Need{Verb: Read, Kind: k}, now) || !everywhere(t.heldBy(c)) {
		return false
	}

	token := t.tokens.get(c.Token)

	return token == nil || token.Scope == nil || everywhere(t.scopeGrants(token))
}

// Token returns a token's record.
func (t *Table) Token(id string) (task.Token, bool) {
	token := t.tokens.get(id)
	if token == nil {
		return task.Token{}, false
	}

	return token.Token, true
}

// Disabled reports whether a subject was disabled.
func (t *Table) Disabled(subject string) bool { return t.disabled[subject] }

// Namespace returns the record of a namespace; nil if there is none.
func (t *Table) Namespace(name string) *task.Namespace { return t.namespaces[name] }

// Namespaces are the names of the namespaces that have a record, in order.
func (t *Table) Namespaces() []string { return slices.Sorted(maps.Keys(t.namespaces)) }

// Role returns a role by its name.
func (t *Table) Role(name string) (task.Role, bool) {
	role, ok := t.roles[name]
	return role.Role, ok
}

// RolesWith are the names of the built-in roles that allow a verb on a kind, the least
// powerful first. Refusals name the first.
func RolesWith(verb Verb, k Kind) []string {
	var names []string
	for _, role := range BuiltInRoles() {
		for _, r := range role.Rules {
			if set, err := parseRule("", r); err == nil && set[k]&verb == verb {
				names = append(names, role.Name)
				break
			}
		}
	}

	return names
}

// SuggestRole returns what would allow a verb on a kind, for hints: the least powerful built-in role, and that its
// binding must be one of the cluster if the kind needs that. It returns "" if no built-in role allows it.
func SuggestRole(verb Verb, k Kind) string {
	roles := RolesWith(verb, k)
	switch {
	case len(roles) == 0:
		return ""
	case k.OfCluster():
		return "a binding of the role " + roles[0] + " in the whole cluster"
	}

	return "the role " + roles[0]
}
