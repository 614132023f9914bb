// Package node is "carillon node": list and look at nodes, drain, cordon and resume them.
package node
