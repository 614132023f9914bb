// Package namespace implements "carillon namespace": list, create, update and delete the records of namespaces, which limit
// what the tasks of a namespace may be.
package namespace
