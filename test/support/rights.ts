import { readFileSync } from 'node:fs';

/** `verbs` of `resources`, as in Role and ClusterRole. */
export interface Rule {
  readonly apiGroups: readonly string[];
  readonly resources: readonly string[];
  readonly verbs: readonly string[];
}

/** The used fields of a line in the API server's audit log. */
interface Entry {
  readonly verb: string;
  readonly user: { readonly username: string };
  readonly objectRef?: {
    readonly apiGroup?: string;
    readonly resource?: string;
    readonly subresource?: string;
    readonly namespace?: string;
    readonly name?: string;
  };
  readonly annotations?: Readonly<Record<string, string>>;
  readonly responseStatus?: { readonly code?: number };
}

export interface Asked {
  /** For example `pods/log get`. */
  readonly right: string;
  /** Undefined for cluster-scoped objects, and for lists of all namespaces. */
  readonly namespace: string | undefined;
  readonly isAllowed: boolean;
  /** RBAC allowed the request, and an admission policy refused it. */
  readonly isDenied: boolean;
}

const named = (group: string, resource: string, verb: string): string =>
  `${resource}${group === '' ? '' : `.${group}`} ${verb}`;

/** A ServiceAccount's requests, without those of every user (discovery, who it is). */
export function askedBy(auditLog: string, namespace: string, account: string): Asked[] {
  const username = `system:serviceaccount:${namespace}:${account}`;
  return readFileSync(auditLog, 'utf8')
    .split('\n')
    .filter((line) => line.includes(username))
    .map((line) => JSON.parse(line) as Entry)
    .filter(({ user, objectRef }) => user.username === username && objectRef?.resource)
    .map(({ verb, objectRef = {}, annotations = {}, responseStatus }) => {
      const { apiGroup = '', resource = '', subresource, namespace: where } = objectRef;
      const what = subresource === undefined ? resource : `${resource}/${subresource}`;
      return {
        right: named(apiGroup, what, verb),
        namespace: where,
        isAllowed: annotations['authorization.k8s.io/decision'] === 'allow',
        isDenied: responseStatus?.code === 422,
      };
    });
}

/** Single rights of the rules. */
export const rightsOf = (rules: readonly Rule[]): string[] =>
  rules.flatMap(({ apiGroups, resources, verbs }) =>
    apiGroups.flatMap((group) =>
      resources.flatMap((resource) => verbs.map((verb) => named(group, resource, verb))),
    ),
  );
