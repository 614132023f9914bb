// Package access decides who may do what.
//
// The records are roles (lists of rules), bindings (a role for subjects, in namespaces or in
// the cluster), namespaces, tokens and disabled subjects. Compile turns all records of one
// revision into a Table; a Table answers in well below a microsecond, and without allocating:
//
//	records of one revision ──Compile──▶ Table ──Allows(caller, need, now)──▶ yes or no
//
// What is guaranteed:
//
//   - Nothing is allowed that no rule allows. There are no rules that deny, so the order of
//     records never matters.
//   - Kinds of objects that belong to the whole cluster (nodes, cluster, namespaces, access,
//     audit) are allowed only by bindings of the cluster.
//   - A label that a rule or a binding names must have exactly that value. An object without
//     the label does not match: only equalities exist, because "env != prod" would also match
//     what nobody has labelled.
//   - A caller never grants more than it holds: Covers reports whether each verb, kind,
//     namespace, label set and end of a new grant lies within one of the caller's own.
//   - A token acts as its subject, narrowed by its scope; who created it does not matter.
//   - What ends by time is compared with the time of each question, not of the compilation.
//
// What is not: a Table does not know whether it is current. Its reader compares the fence's
// revision (Table.Fence) in each transaction that it authorises; see package store.
//
// The package is pure: it has no clock, no network and no disk. It touches no keys.
package access
