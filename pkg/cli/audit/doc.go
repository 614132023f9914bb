// Package audit implements "carillon audit". It makes the server check its records, shows the findings, and has
// them repaired after confirmation.
package audit
