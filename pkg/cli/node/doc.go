// Package node implements "carillon node": it lists, shows, drains, cordons and resumes nodes.
package node
