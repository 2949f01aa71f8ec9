import { CodedError, lookup } from '../../base/index.ts';

/**
 * The meaning of an answer of the API server for the caller.
 * - `away`: the API server or its store cannot answer. Retry for minutes. A write may have been
 *   done.
 * - `refused for now`: the answer may change within seconds. Retry for a short, bounded time. If
 *   the answer stays the same, it is final.
 * - `refused`: the answer is final. Do not retry.
 */
export type Meaning = 'away' | 'refused for now' | 'refused';

interface Row {
  /** The HTTP status; undefined for a request without an answer. */
  readonly status: number | undefined;
  /** Pattern for the message. Without it the row matches every answer with this status. */
  readonly message?: RegExp;
  readonly meaning: Meaning;
  /** An extension of the API server does not work: a webhook, an aggregated API, a definition. */
  readonly isExtension?: true;
}

/** Sources: kubernetes/kubernetes v1.34, etcd-io/etcd v3.6. The first matching row counts. */
const ROWS: readonly Row[] = [
  // No answer: the connection was refused, broke or timed out. The API server may be restarting.
  { status: undefined, meaning: 'away' },

  // The ServiceAccount authenticator reads accounts from etcd, and its cache is empty after a
  // start. Valid tokens then get 401. A token file may also have just been replaced. Kubernetes:
  // pkg/serviceaccount/claims.go, Validate.
  { status: 401, meaning: 'refused for now' },

  // A new ResourceQuota has no status yet. Kubernetes: plugin/resourcequota/controller.go.
  { status: 403, message: /status unknown for quota/, meaning: 'refused for now' },
  // Admission plugins during a start. Kubernetes: apiserver/pkg/admission/plugin, WaitForReady.
  { status: 403, message: /not yet ready to handle request/, meaning: 'refused for now' },
  // A controller creates it shortly after the namespace. Kubernetes: plugin/serviceaccount.
  {
    status: 403,
    message: /error looking up service account [^ ]*\/default: serviceaccount "default" not found/,
    meaning: 'refused for now',
  },
  // A webhook's own refusal, which may contain the words of the rows below.
  { status: 403, message: /admission webhook "[^"]*" denied the request/, meaning: 'refused' },
  // The RBAC authorizer has no bindings or roles until its caches are filled after a start. The
  // message is the same as for a missing right. Kubernetes:
  // plugin/pkg/auth/authorizer/rbac/rbac.go; apiserver/pkg/endpoints/handlers/responsewriters.
  { status: 403, message: /forbidden: User "|RBAC: |forbidden\s*$/i, meaning: 'refused for now' },
  // A proxy or an authorizer without a message.
  { status: 403, message: /HTTP status 403$/, meaning: 'refused for now' },
  // Refused by admission, for example by a quota, a policy or Pod Security.
  { status: 403, meaning: 'refused' },

  // The path is not served: a definition or an aggregated API is missing. Only in a restore can a
  // retry help. Kubernetes: apimachinery/pkg/api/errors, NewGenericServerResponse.
  {
    status: 404,
    message: /could not find the requested resource|404 page not found|no matches for kind/,
    meaning: 'refused',
    isExtension: true,
  },
  // No such object.
  { status: 404, meaning: 'refused' },

  // The object exists.
  { status: 409, message: /already exists/, meaning: 'refused' },
  // Concurrent write, for example while a quota is counted.
  { status: 409, meaning: 'refused for now' },

  // The version of a list or watch is too old. A new list works.
  { status: 410, meaning: 'refused for now' },

  // API priority and fairness, or too many requests for etcd. The request was not executed.
  { status: 429, meaning: 'away' },

  // etcd elects a leader, restarts or is slow. The API server has no other code for this. etcd:
  // api/v3rpc/rpctypes/error.go; "rpc error" comes from its client.
  {
    status: 500,
    message: /etcdserver: |rpc error: code = |etcdclient: |raft: /,
    meaning: 'away',
  },
  // Kubernetes: apiserver/pkg/admission/plugin/webhook/errors; apiextensions-apiserver, conversion.
  {
    status: 500,
    message: /failed calling webhook|failed to call webhook|conversion webhook for/,
    meaning: 'refused for now',
    isExtension: true,
  },
  // Any other failure of the API server, such as an unreachable kubelet.
  { status: 500, meaning: 'refused for now' },

  // The load balancer has no API server, the API server starts or stops, or the request timed out.
  // Aggregated APIs answer in the same way if their own server is down.
  { status: 408, meaning: 'away' },
  { status: 502, meaning: 'away' },
  { status: 503, meaning: 'away' },
  { status: 504, meaning: 'away' },
];

/** The status for errors that have no status. */
const STATUS_OF: Readonly<Record<string, number>> = {
  KUBE_UNAUTHORIZED: 401,
  KUBE_FORBIDDEN: 403,
  KUBE_NOT_FOUND: 404,
  KUBE_ALREADY_EXISTS: 409,
  KUBE_CONFLICT: 409,
  KUBE_GONE: 410,
  KUBE_INVALID: 422,
  KUBE_THROTTLED: 429,
};

function rowOf(error: unknown): Row | undefined {
  if (!(error instanceof CodedError) || !error.code.startsWith('KUBE_')) return undefined;
  const { code, message, facts } = error;
  if (code === 'KUBE_ALREADY_EXISTS') return { status: 409, meaning: 'refused' };
  const status = lookup(STATUS_OF, code) ?? facts.httpStatus;
  if (status === undefined && code !== 'KUBE_UNAVAILABLE') return undefined;
  return ROWS.find((row) => row.status === status && (row.message?.test(message) ?? true));
}

/** Errors from other sources than the API server mean `refused`: their own code decides. */
export function meaningOf(error: unknown): Meaning {
  if (error instanceof CodedError && error.facts.isLasting === true) return 'refused';
  return rowOf(error)?.meaning ?? 'refused';
}

/**
 * Whether the API server works but an extension does not: a webhook, a conversion, an aggregated
 * API or a definition. Checks the causes of the error too.
 */
export function isExtensionAway(error: unknown): boolean {
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    const isTold = cause instanceof CodedError && cause.facts.isExtension === true;
    if (isTold || rowOf(cause)?.isExtension === true) return true;
  }
  return false;
}

/** An answer of a load balancer, or of an API server that cannot reach an aggregated API. */
export const isOfGateway = (error: unknown): boolean =>
  error instanceof CodedError && [502, 503, 504].includes(Number(error.facts.httpStatus));

/** Marks an error of an extension, if the API server itself is known to work. */
export function ofExtension(error: CodedError): CodedError {
  const { code, message, cause, facts } = error;
  return new CodedError(code, message, {
    cause,
    facts: { ...facts, isExtension: true, isLasting: true },
  });
}

/** The API server reports that its store cannot answer, but still answers other requests. */
export const isStoreAway = (error: unknown): boolean =>
  rowOf(error)?.meaning === 'away' && error instanceof CodedError && error.facts.httpStatus === 500;

/** A refusal because of a missing identity or right. */
export const isUnauthorized = (error: unknown): boolean =>
  error instanceof CodedError && ['KUBE_UNAUTHORIZED', 'KUBE_FORBIDDEN'].includes(error.code);
