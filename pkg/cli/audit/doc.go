// Package audit is "carillon audit": it has the server check its records, shows the findings,
// and has them repaired when the user agrees.
package audit
