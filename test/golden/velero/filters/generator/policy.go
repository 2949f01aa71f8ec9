package main

import (
	"reflect"

	"github.com/vmware-tanzu/velero/pkg/util/collections"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func parse(name string) schema.GroupVersionResource {
	return schema.ParseGroupResource(name).WithVersion("")
}

// combine adds an include-exclude policy. Its type is internal to Velero, so it is made by reflection.
func combine(filter *collections.ScopeIncludesExcludes, answer m) {
	method := reflect.ValueOf(filter).MethodByName("CombineWithPolicy")
	policy := reflect.New(method.Type().In(0).Elem())
	lists := [4][]string{some(written, 2), some(written, 2), some(written, 2), some(written, 2)}
	for n, field := range []string{"IncludedNamespaceScopedResources", "ExcludedNamespaceScopedResources", "IncludedClusterScopedResources", "ExcludedClusterScopedResources"} {
		policy.Elem().FieldByName(field).Set(reflect.ValueOf(lists[n]))
	}
	method.Call([]reflect.Value{policy})
	answer["policy"] = lists
}
