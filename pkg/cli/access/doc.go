// Package access implements "carillon access" and "carillon whoami": who may do what, and changes of that.
package access
