import { readFileSync } from 'node:fs';

/** `verbs` of `resources`, as Role and ClusterRole say it. */
export interface Rule {
  readonly apiGroups: readonly string[];
  readonly resources: readonly string[];
  readonly verbs: readonly string[];
}

/** One line of the API server's audit log, as far as it is looked at. */
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
  /** Such as `pods/log get`. */
  readonly right: string;
  /** Undefined for objects in no namespace, and for lists over all. */
  readonly namespace: string | undefined;
  readonly isAllowed: boolean;
  /** It has the right, and an admission policy refused what it is used for. */
  readonly isDenied: boolean;
}

const named = (group: string, resource: string, verb: string): string =>
  `${resource}${group === '' ? '' : `.${group}`} ${verb}`;

/** What a ServiceAccount asked for, without what everybody may ask for (discovery, who it is). */
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

/** Each right that rules give, by itself. */
export const rightsOf = (rules: readonly Rule[]): string[] =>
  rules.flatMap(({ apiGroups, resources, verbs }) =>
    apiGroups.flatMap((group) =>
      resources.flatMap((resource) => verbs.map((verb) => named(group, resource, verb))),
    ),
  );
