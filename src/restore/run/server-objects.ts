import { isCode, lookup } from '../../base/index.ts';
import {
  askedFor,
  CLUSTER_ROLE_BINDINGS,
  type ClusterRoleBinding,
  type KubeClient,
  type KubeObject,
  type Patience,
  POLICY_BINDINGS,
  type PolicyBinding,
  type Resource,
  ROLE_BINDINGS,
} from '../../kube/index.ts';
import { listAt, textOf } from '../actions/fields.ts';
import { namespaceOf } from '../actions/subjects.ts';

export interface ServerObjectsOptions {
  readonly client: Pick<KubeClient, 'collect'>;
  readonly patience: Patience;
  readonly signal: AbortSignal;
}

const RBAC = 'rbac.authorization.k8s.io';
const ADMISSION = 'admissionregistration.k8s.io';

/**
 * The objects in the namespace of a running server, and the Roles and bindings of its service
 * accounts. Also the admission policies with a parameter in that namespace. A restore creates
 * missing ones and never changes existing ones. An older Secret or location would cut the server
 * off from its bucket, and an older Role would take its rights. An older policy would refuse its
 * data movers.
 */
export class ServerObjects {
  readonly #options: ServerObjectsOptions;
  readonly #namespaces: ReadonlySet<string>;
  #roles: Promise<ReadonlySet<string>> | undefined;
  #policies: Promise<ReadonlySet<string>> | undefined;

  /** `namespaces`: the namespaces of running servers. */
  constructor(options: ServerObjectsOptions, namespaces: ReadonlySet<string>) {
    this.#options = options;
    this.#namespaces = namespaces;
  }

  /** Whether an object belongs to a server. Lists bindings once, for the first Role. */
  async has(found: KubeObject, { group, plural }: Resource<KubeObject>): Promise<boolean> {
    const { namespace = '', name } = found.metadata;
    if (this.#namespaces.has(namespace)) return true;
    switch (`${plural}.${group}`) {
      case `clusterrolebindings.${RBAC}`:
      case `rolebindings.${RBAC}`:
        return this.#isBound(found);
      case `clusterroles.${RBAC}`:
      case `roles.${RBAC}`: {
        this.#roles ??= this.#boundRoles();
        // After a failure, the next role lists again.
        this.#roles.catch(() => (this.#roles = undefined));
        return (await this.#roles).has(`${namespace}/${name}`);
      }
      case `validatingadmissionpolicybindings.${ADMISSION}`:
        return this.#isParameterized(found);
      case `validatingadmissionpolicies.${ADMISSION}`: {
        this.#policies ??= this.#boundPolicies();
        this.#policies.catch(() => (this.#policies = undefined));
        return (await this.#policies).has(name);
      }
      case 'securitycontextconstraints.security.openshift.io':
        return this.#isNamed(found);
      default:
        return false;
    }
  }

  /** Whether a subject is a service account of the server, or the group of all of them. */
  #isBound(binding: KubeObject): boolean {
    return listAt(binding, 'subjects').some((subject) =>
      this.#namespaces.has(namespaceOf(subject) ?? ''),
    );
  }

  /** Whether the parameter of a policy is in the namespace of the server, such as its agents. */
  #isParameterized({ spec }: PolicyBinding): boolean {
    return this.#namespaces.has(spec?.paramRef?.namespace ?? '');
  }

  #isNamed(constraints: KubeObject): boolean {
    const named = (field: string, kind: string): boolean => {
      const names = lookup(constraints as unknown as Record<string, unknown>, field);
      return this.#isBound({
        ...constraints,
        subjects: Array.isArray(names) ? names.map((name) => ({ kind, name: textOf(name) })) : [],
      } as KubeObject);
    };
    return named('users', 'User') || named('groups', 'Group');
  }

  /** `namespace/name` of Roles, and `/name` of ClusterRoles. */
  async #boundRoles(): Promise<ReadonlySet<string>> {
    const { client, patience, signal } = this.#options;
    const roles = new Set<string>();
    for (const resource of [CLUSTER_ROLE_BINDINGS, ROLE_BINDINGS]) {
      await patience.ask(askedFor('list', resource), () =>
        client.collect<ClusterRoleBinding, never>(resource, { signal }, (binding) => {
          const { kind, name = '' } = binding.roleRef ?? {};
          const namespace = kind === 'Role' ? (binding.metadata.namespace ?? '') : '';
          if (this.#isBound(binding)) roles.add(`${namespace}/${name}`);
          return [];
        }),
      );
    }
    return roles;
  }

  /** Names of policies. */
  async #boundPolicies(): Promise<ReadonlySet<string>> {
    const { client, patience, signal } = this.#options;
    try {
      const names = await patience.ask(askedFor('list', POLICY_BINDINGS), () =>
        client.collect(POLICY_BINDINGS, { signal }, (binding) =>
          this.#isParameterized(binding) ? [binding.spec?.policyName ?? ''] : [],
        ),
      );
      return new Set(names);
    } catch (error) {
      // Kubernetes before 1.30 serves an older version only, and its policies are not ours.
      if (isCode(error, 'KUBE_NOT_FOUND')) return new Set();
      throw error;
    }
  }
}
