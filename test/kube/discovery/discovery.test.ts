import { describe, expect, it } from 'vitest';
import { CodedError } from '../../../src/base/index.ts';
import { kubeError, unreachable } from '../../../src/kube/client/errors.ts';
import { Discovery } from '../../../src/kube/index.ts';

const VERBS = ['create', 'delete', 'get', 'list', 'watch'];

interface Kind {
  readonly resource: string;
  readonly kind: string;
  readonly scope?: string;
  readonly singular?: string;
  readonly shortNames?: readonly string[];
  readonly verbs?: readonly string[];
}

const kind = (resource: string, name: string, more: Partial<Kind> = {}): Kind => ({
  resource,
  kind: name,
  ...more,
});

const version = (name: string, kinds: readonly Kind[], freshness = 'Current'): object => ({
  version: name,
  freshness,
  resources: kinds.map((each) => ({
    resource: each.resource,
    responseKind: { group: '', version: name, kind: each.kind },
    scope: each.scope ?? 'Namespaced',
    singularResource: each.singular ?? each.kind.toLowerCase(),
    verbs: each.verbs ?? VERBS,
    shortNames: each.shortNames,
    subresources: [{ subresource: 'status' }],
  })),
});

const group = (name: string, ...versions: object[]): object => ({ metadata: { name }, versions });
const aggregated = (...items: object[]): object => ({ kind: 'APIGroupDiscoveryList', items });

type Answers = Record<string, object | Error>;

/**
 * Answers each path with its entry. A path without an entry gets the API server's answer to unknown
 * paths.
 */
function serverOf(answers: Answers): {
  raw: (request: { path: string; accept?: string | undefined }) => Promise<unknown>;
  answers: Answers;
  asked: string[];
} {
  const asked: string[] = [];
  const all: Answers = {
    '/version': { major: '1', minor: '36', gitVersion: 'v1.36.2' },
    ...answers,
  };
  return {
    asked,
    answers: all,
    raw: ({ path }) => {
      asked.push(path);
      const answer = all[path];
      if (answer instanceof Error) return Promise.reject(answer);
      if (answer) return Promise.resolve(answer);
      return Promise.reject(new CodedError('KUBE_NOT_FOUND', `${path} is not there`));
    },
  };
}

const CORE = group(
  '',
  version('v1', [
    kind('configmaps', 'ConfigMap', { shortNames: ['cm'] }),
    kind('events', 'Event', { shortNames: ['ev'] }),
    kind('namespaces', 'Namespace', { scope: 'Cluster', shortNames: ['ns'] }),
    kind('bindings', 'Binding', { verbs: ['create'] }),
    kind('pods', 'Pod', { shortNames: ['po'] }),
  ]),
);

const NAMED = [
  group(
    'extensions',
    version('v1beta1', [kind('deployments', 'Deployment', { shortNames: ['deploy'] })]),
  ),
  group('apps', version('v1', [kind('deployments', 'Deployment', { shortNames: ['deploy'] })])),
  group('events.k8s.io', version('v1', [kind('events', 'Event', { shortNames: ['ev'] })])),
  group(
    'storage.k8s.io',
    version('v1', [
      kind('storageclasses', 'StorageClass', { scope: 'Cluster', shortNames: ['sc'] }),
    ]),
    version('v1beta1', [
      kind('storageclasses', 'StorageClass', { scope: 'Cluster' }),
      kind('csinodeinfos', 'CSINodeInfo', { scope: 'Cluster' }),
    ]),
  ),
];

const whole = (): ReturnType<typeof serverOf> =>
  serverOf({ '/api': aggregated(CORE), '/apis': aggregated(...NAMED) });

const names = (discovery: Discovery): string[] =>
  discovery.lists.flatMap(({ group: of, version: at, resources }) =>
    resources.map(({ plural }) => `${of}/${at}/${plural}`),
  );

describe('what an API server serves', () => {
  it('is listed with one version of each resource, without what cannot be backed up, and extensions last', async () => {
    expect(names(await Discovery.open(whole()))).toEqual([
      '/v1/configmaps',
      '/v1/events',
      '/v1/namespaces',
      '/v1/pods',
      'apps/v1/deployments',
      'events.k8s.io/v1/events',
      'storage.k8s.io/v1/storageclasses',
      'storage.k8s.io/v1beta1/csinodeinfos',
      'extensions/v1beta1/deployments',
    ]);
  });

  it('is listed in every version when all versions are asked for', async () => {
    const discovery = await Discovery.open(whole(), { hasAllVersions: true });
    expect(names(discovery)).toContain('storage.k8s.io/v1beta1/storageclasses');
    expect(discovery.find('storageclasses')?.version).toBe('v1');
  });

  it('is asked for in two requests where the server gathers it', async () => {
    const server = whole();
    await Discovery.open(server);
    expect(server.asked).toEqual(['/api', '/apis', '/version']);
  });

  it('is the same from a server that tells about one version at a time', async () => {
    const plain = serverOf({
      '/api': { kind: 'APIVersions', versions: ['v1'] },
      '/apis': {
        kind: 'APIGroupList',
        groups: ['extensions', 'apps', 'events.k8s.io', 'storage.k8s.io'].map((name) => ({
          name,
          versions: versionsOf(name).map((at) => ({ version: at, groupVersion: `${name}/${at}` })),
          preferredVersion: { version: versionsOf(name)[0] },
        })),
      },
      ...Object.fromEntries([
        ['/api/v1', plainOf(CORE, 0)],
        ...NAMED.flatMap((item) => {
          const { metadata, versions } = item as {
            metadata: { name: string };
            versions: { version: string }[];
          };
          return versions.map(
            ({ version: at }, index) =>
              [`/apis/${metadata.name}/${at}`, plainOf(item, index)] as const,
          );
        }),
      ]),
    });
    expect(names(await Discovery.open(plain))).toEqual(names(await Discovery.open(whole())));
  });

  it('keeps what a user sees of the server version', async () => {
    expect((await Discovery.open(whole())).serverVersion).toEqual({
      major: '1',
      minor: '36',
      gitVersion: 'v1.36.2',
    });
  });

  it('is refused when nothing of it can be backed up', async () => {
    const server = serverOf({ '/api': aggregated(), '/apis': aggregated() });
    await expect(Discovery.open(server)).rejects.toMatchObject({ code: 'NOTHING_SERVED' });
  });

  it('bears lists, names and kinds that are missing', async () => {
    const odd = { metadata: { name: 'odd.io' }, versions: [{ version: 'v1', resources: null }] };
    const nameless = { metadata: {}, versions: null };
    const server = serverOf({
      '/api': aggregated(CORE),
      '/apis': aggregated(
        odd,
        nameless,
        group('x.io', version('v1', [kind('', ''), kind('things', 'Thing')])),
      ),
    });
    expect(names(await Discovery.open(server))).toContain('x.io/v1/things');
  });
});

const versionsOf = (name: string): string[] =>
  NAMED.flatMap((item) => {
    const { metadata, versions } = item as {
      metadata: { name: string };
      versions: { version: string }[];
    };
    return metadata.name === name ? versions.map(({ version: at }) => at) : [];
  });

/** The same resources in the form of servers before 1.26, with a subresource among them. */
function plainOf(item: object, index: number): object {
  const { versions } = item as {
    versions: {
      resources: {
        resource: string;
        responseKind: { kind: string };
        scope: string;
        singularResource: string;
        verbs: string[];
        shortNames?: string[];
      }[];
    }[];
  };
  const resources = (versions[index]?.resources ?? []).flatMap((each) => {
    const shared = { kind: each.responseKind.kind, verbs: each.verbs, shortNames: each.shortNames };
    return [
      { ...shared, name: each.resource, singularName: '', namespaced: each.scope === 'Namespaced' },
      { ...shared, name: `${each.resource}/status`, namespaced: each.scope === 'Namespaced' },
    ];
  });
  return { kind: 'APIResourceList', resources };
}

describe('a group whose server does not answer', () => {
  const logged: object[] = [];
  const logger = {
    debug: () => undefined,
    info: () => undefined,
    warn: (fields: object) => void logged.push(fields),
    error: () => undefined,
  };

  it('is a failure with its name, and all others are there, where the server gathers', async () => {
    const broken = group(
      'metrics.k8s.io',
      version('v1beta1', [kind('pods', 'PodMetrics')], 'Stale'),
    );
    const server = serverOf({ '/api': aggregated(CORE), '/apis': aggregated(broken, ...NAMED) });
    const discovery = await Discovery.open(server, { logger });
    expect(discovery.failures).toEqual([
      {
        groupVersion: 'metrics.k8s.io/v1beta1',
        reason: 'the server of this group does not answer',
      },
    ]);
    expect(names(discovery)).toEqual(names(await Discovery.open(whole())));
    expect(logged.length).toBe(1);
    await discovery.refresh();
    // The failure is logged again only after an answer in between.
    expect(logged.length).toBe(1);
  });

  it('is a failure where the list of all groups is refused or not there', async () => {
    for (const code of ['KUBE_FORBIDDEN', 'KUBE_NOT_FOUND']) {
      const refused = new CodedError(code, 'not for you');
      const server = serverOf({ '/api': aggregated(CORE), '/apis': refused });
      const discovery = await Discovery.open(server);
      expect(discovery.failures).toEqual([{ groupVersion: '/apis', reason: 'not for you' }]);
    }
  });

  it('is a failure with its reason where each version is asked for', async () => {
    const server = serverOf({
      '/api': { versions: ['v1'] },
      '/api/v1': plainOf(CORE, 0),
      '/apis': {
        groups: [{ name: 'metrics.k8s.io', versions: [{ version: 'v1beta1' }] }],
      },
      '/apis/metrics.k8s.io/v1beta1': kubeError('get', 503, undefined),
    });
    const discovery = await Discovery.open(server);
    expect(discovery.failures).toEqual([
      { groupVersion: 'metrics.k8s.io/v1beta1', reason: 'get: HTTP status 503' },
    ]);
    expect(names(discovery)).toContain('/v1/pods');
  });

  it.each([
    ['cannot be reached', 'apps', unreachable('get', new Error('the connection broke'))],
    ['is busy', 'apps', kubeError('get', 429, undefined)],
    ['cannot say what it serves itself', '', kubeError('get', 503, undefined)],
  ])('is none where the API server %s', async (_what, broken, error) => {
    const server = serverOf({
      '/api': { versions: ['v1'] },
      '/api/v1': broken === '' ? error : plainOf(CORE, 0),
      '/apis': { groups: [{ name: 'apps', versions: [{ version: 'v1' }] }] },
      '/apis/apps/v1': error,
    });
    await expect(Discovery.open(server)).rejects.toBe(error);
  });
});

describe('a resource is found', () => {
  const found = async (name: string): Promise<string | undefined> => {
    const resource = (await Discovery.open(whole())).find(name);
    return resource && `${resource.plural}.${resource.group}/${resource.version}`;
  };

  it.each([
    ['pods', 'pods./v1'],
    ['pod', 'pods./v1'],
    ['Pod', 'pods./v1'],
    ['PODS', 'pods./v1'],
    ['po', 'pods./v1'],
    ['cm', 'configmaps./v1'],
    ['StorageClass', 'storageclasses.storage.k8s.io/v1'],
    ['sc', 'storageclasses.storage.k8s.io/v1'],
    ['sc.storage', 'storageclasses.storage.k8s.io/v1'],
    ['storageclass.storage', 'storageclasses.storage.k8s.io/v1'],
    ['csinodeinfos', 'csinodeinfos.storage.k8s.io/v1beta1'],
    ['deployments', 'deployments.extensions/v1beta1'],
    ['deployments.apps', 'deployments.apps/v1'],
    ['deploy.app', 'deployments.apps/v1'],
    ['events', 'events./v1'],
    ['events.events.k8s.io', 'events.events.k8s.io/v1'],
  ])('by %s', async (name, expected) => {
    expect(await found(name)).toBe(expected);
  });

  it.each(['nothing', 'pods.apps', 'PO', 'bindings', '', '.', 'pods/status', '*'])(
    'never by %s',
    async (name) => {
      expect(await found(name)).toBeUndefined();
    },
  );
});

describe('a refresh', () => {
  it('takes what is new, and is one for all who ask at once', async () => {
    const server = whole();
    const discovery = await Discovery.open(server);
    expect(discovery.find('things')).toBeUndefined();
    server.answers['/apis'] = aggregated(
      ...NAMED,
      group('x.io', version('v1', [kind('things', 'Thing')])),
    );
    const before = server.asked.length;
    await Promise.all([discovery.refresh(), discovery.refresh(), discovery.refresh()]);
    expect(server.asked.length - before).toBe(3);
    expect(discovery.find('things')?.group).toBe('x.io');
  });

  it('that fails leaves what was known, and the next one is made', async () => {
    const server = whole();
    const discovery = await Discovery.open(server);
    const good = server.answers['/apis'];
    server.answers['/apis'] = new CodedError('KUBE_UNAVAILABLE', 'away');
    await expect(discovery.refresh()).rejects.toMatchObject({ code: 'KUBE_UNAVAILABLE' });
    expect(discovery.find('deployments.apps')).toBeDefined();
    if (good) server.answers['/apis'] = good;
    await discovery.refresh();
  });

  it('is made again and again until its owner ends it', async () => {
    const server = whole();
    const discovery = await Discovery.open(server);
    const ending = new AbortController();
    const running = discovery.keepFresh(1, ending.signal);
    server.answers['/apis'] = new CodedError('KUBE_UNAVAILABLE', 'away');
    while (server.asked.length < 8) await new Promise((resolve) => setTimeout(resolve, 1));
    server.answers['/apis'] = aggregated(group('x.io', version('v1', [kind('things', 'Thing')])));
    while (!discovery.find('things')) await new Promise((resolve) => setTimeout(resolve, 1));
    ending.abort();
    await running;
  });
});
