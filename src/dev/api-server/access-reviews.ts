/** The user and rights of every client: the token of this server allows everything. */
const USER = { username: 'dev', uid: 'dev', groups: ['system:masters', 'system:authenticated'] };
const EVERYTHING = ['*'];

interface Review {
  readonly group: string;
  readonly kind: string;
  readonly plural: string;
  readonly status: (spec: Asked, isOwn: (token: string) => boolean) => object;
}

interface Asked {
  readonly token?: string;
  readonly audiences?: readonly string[];
  readonly user?: string;
}

export const REVIEWS: readonly Review[] = [
  {
    group: 'authorization.k8s.io',
    kind: 'SelfSubjectAccessReview',
    plural: 'selfsubjectaccessreviews',
    status: () => ({ allowed: true, reason: "this server's token allows everything" }),
  },
  {
    group: 'authorization.k8s.io',
    kind: 'SelfSubjectRulesReview',
    plural: 'selfsubjectrulesreviews',
    status: () => ({
      resourceRules: [{ verbs: EVERYTHING, apiGroups: EVERYTHING, resources: EVERYTHING }],
      nonResourceRules: [{ verbs: EVERYTHING, nonResourceURLs: EVERYTHING }],
      incomplete: false,
    }),
  },
  {
    group: 'authentication.k8s.io',
    kind: 'SelfSubjectReview',
    plural: 'selfsubjectreviews',
    status: () => ({ userInfo: USER }),
  },
  {
    group: 'authentication.k8s.io',
    kind: 'TokenReview',
    plural: 'tokenreviews',
    status: ({ token = '', audiences = [] }, isOwn) =>
      isOwn(token) ? { authenticated: true, user: USER, audiences } : { authenticated: false },
  },
  {
    group: 'authorization.k8s.io',
    kind: 'SubjectAccessReview',
    plural: 'subjectaccessreviews',
    status: ({ user }) => ({ allowed: user === USER.username }),
  },
];

/**
 * The answer to `kubectl auth can-i`, `auth whoami` and similar; undefined for all other paths.
 * `isOwn`: whether a token is this server's.
 */
export function reviewed(
  path: string,
  body: unknown,
  isOwn: (token: string) => boolean,
): object | undefined {
  const [, apis, group, version, plural, ...rest] = path.split('/');
  if (apis !== 'apis' || version !== 'v1' || rest.length > 0) return undefined;
  const review = REVIEWS.find((known) => known.group === group && known.plural === plural);
  if (!review) return undefined;
  const { spec } = (body ?? {}) as { spec?: Asked };
  return {
    apiVersion: `${review.group}/v1`,
    kind: review.kind,
    metadata: {},
    ...(spec && { spec }),
    status: review.status(spec ?? {}, isOwn),
  };
}
