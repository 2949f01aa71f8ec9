package main

import (
	"reflect"
	"strings"

	"k8s.io/client-go/kubernetes/scheme"
)

// A field whose value is merged in a way of its own, or that has such fields in it.
type field struct {
	// of the type that the value has, or its elements; empty where nothing in it is special
	Type string `json:"type,omitempty"`
	// merge, replace or nothing
	Strategy string `json:"strategy,omitempty"`
	Key      string `json:"key,omitempty"`
}

type tables struct {
	// by apiVersion: kinds, and the type of those that have special fields
	Kinds map[string]map[string]string `json:"kinds"`
	Types map[string]map[string]field  `json:"types"`
}

func table() tables {
	result := tables{map[string]map[string]string{}, map[string]map[string]field{}}
	for gvk, t := range scheme.Scheme.AllKnownTypes() {
		if _, is := t.FieldByName("ObjectMeta"); !is || gvk.Version == "__internal" {
			continue
		}
		kinds := result.Kinds[gvk.GroupVersion().String()]
		if kinds == nil {
			kinds = map[string]string{}
			result.Kinds[gvk.GroupVersion().String()] = kinds
		}
		kinds[gvk.Kind] = ""
		if special(t, nil) {
			kinds[gvk.Kind] = t.String()
			add(result.Types, t)
		}
	}
	return result
}

func plain(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Array {
		t = t.Elem()
	}
	return t
}

func fields(t reflect.Type, each func(name, strategy, key string, t reflect.Type)) {
	if t.Kind() != reflect.Struct {
		return
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && (f.Anonymous || strings.Contains(options, "inline")) {
			fields(plain(f.Type), each)
		} else if name != "" && name != "-" {
			var strategy []string
			for _, one := range strings.Split(f.Tag.Get("patchStrategy"), ",") {
				if one != "" && one != "retainKeys" {
					strategy = append(strategy, one)
				}
			}
			each(name, strings.Join(strategy, ","), f.Tag.Get("patchMergeKey"), plain(f.Type))
		}
	}
}

// Whether there is a field anywhere in it that is merged in a way of its own.
func special(t reflect.Type, above []reflect.Type) bool {
	for _, one := range above {
		if one == t {
			return false
		}
	}
	found := false
	fields(t, func(_, strategy, key string, inner reflect.Type) {
		found = found || strategy != "" || key != "" || special(inner, append(above, t))
	})
	return found
}

func add(types map[string]map[string]field, t reflect.Type) {
	if types[t.String()] != nil {
		return
	}
	own := map[string]field{}
	types[t.String()] = own
	fields(t, func(name, strategy, key string, inner reflect.Type) {
		isSpecial := special(inner, nil)
		if strategy == "" && key == "" && !isSpecial {
			return
		}
		one := field{Strategy: strategy, Key: key}
		if isSpecial {
			one.Type = inner.String()
			add(types, inner)
		}
		own[name] = one
	})
}
