/** Who asks, and what they may do: whoever has the token of this server may do everything. */
const USER = { username: 'dev', uid: 'dev', groups: ['system:masters', 'system:authenticated'] };
const EVERYTHING = ['*'];

interface Review {
  readonly group: string;
  readonly kind: string;
  readonly plural: string;
  readonly status: object;
}

export const REVIEWS: readonly Review[] = [
  {
    group: 'authorization.k8s.io',
    kind: 'SelfSubjectAccessReview',
    plural: 'selfsubjectaccessreviews',
    status: { allowed: true, reason: "this server's token allows everything" },
  },
  {
    group: 'authorization.k8s.io',
    kind: 'SelfSubjectRulesReview',
    plural: 'selfsubjectrulesreviews',
    status: {
      resourceRules: [{ verbs: EVERYTHING, apiGroups: EVERYTHING, resources: EVERYTHING }],
      nonResourceRules: [{ verbs: EVERYTHING, nonResourceURLs: EVERYTHING }],
      incomplete: false,
    },
  },
  {
    group: 'authentication.k8s.io',
    kind: 'SelfSubjectReview',
    plural: 'selfsubjectreviews',
    status: { userInfo: USER },
  },
];

/** The answer to `kubectl auth can-i` and `auth whoami`; undefined for all other paths. */
export function reviewed(path: string, body: unknown): object | undefined {
  const [, apis, group, version, plural, ...rest] = path.split('/');
  if (apis !== 'apis' || version !== 'v1' || rest.length > 0) return undefined;
  const review = REVIEWS.find((known) => known.group === group && known.plural === plural);
  if (!review) return undefined;
  const { spec } = (body ?? {}) as { spec?: object };
  return {
    apiVersion: `${review.group}/v1`,
    kind: review.kind,
    metadata: {},
    ...(spec && { spec }),
    status: review.status,
  };
}
