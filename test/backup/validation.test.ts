import { describe, expect, it } from 'vitest';
import { BACKUP_DEFAULTS, validateBackup, type ValidationSources } from '../../src/backup/index.ts';
import { CodedError, exactJson, parseJsonExact } from '../../src/base/index.ts';
import type { Backup, BackupSpec, KubeObject, Resource } from '../../src/kube/index.ts';

const object = (name: string, more: object = {}): KubeObject =>
  ({ metadata: { name, namespace: 'velero' }, ...more }) as never;

const AVAILABLE = object('default', { spec: {}, status: { phase: 'Available' } });

interface World {
  readonly backupstoragelocations?: readonly KubeObject[];
  readonly volumesnapshotlocations?: readonly KubeObject[];
  readonly namespaces?: readonly KubeObject[];
  readonly secrets?: readonly KubeObject[];
  /** Plurals whose requests are refused. */
  readonly broken?: readonly string[];
  /** The error of a failed read. By default the server refuses it. */
  readonly error?: Error;
}

function sourcesOf(world: World, more: Partial<ValidationSources> = {}): ValidationSources {
  const all: World = { backupstoragelocations: [AVAILABLE], ...world };
  const listed = (resource: Resource<KubeObject>): Promise<KubeObject[]> =>
    world.broken?.includes(resource.plural) === true
      ? Promise.reject(world.error ?? new CodedError('KUBE_FORBIDDEN', 'it is not allowed'))
      : Promise.resolve([
          ...((all as Record<string, readonly KubeObject[] | undefined>)[resource.plural] ?? []),
        ]);
  const client = {
    list: listed,
    find: async (resource: Resource<KubeObject>, { name }: { name: string }) =>
      (await listed(resource)).find(({ metadata }) => metadata.name === name),
  } as unknown as ValidationSources['client'];
  const known = [
    { plural: 'pods', names: ['pods', 'po'], namespaced: true },
    { plural: 'persistentvolumes', names: ['persistentvolumes'], namespaced: false },
  ];
  return {
    client,
    resources: {
      find: (name) => {
        const found = known.find(({ names }) => names.includes(name));
        return (
          found && {
            ...found,
            group: '',
            version: 'v1',
            kind: 'X',
            singular: '',
            shortNames: [],
            verbs: [],
          }
        );
      },
      serverVersion: { major: '1', minor: '36', gitVersion: 'v1.36.2' },
    },
    defaults: BACKUP_DEFAULTS,
    nowNs: 0n,
    ...more,
  };
}

const backupOf = (spec: BackupSpec): Backup => ({ ...object('nightly'), spec });
const errorsOf = async (
  spec: BackupSpec,
  world: World = {},
  more: Partial<ValidationSources> = {},
): Promise<readonly string[]> =>
  (await validateBackup(backupOf(spec), sourcesOf(world, more))).errors;

it('a Backup with a number that is longer than those of JavaScript is validated, and keeps it', async () => {
  const text = '{"uploaderConfig":{"parallelFilesUpload":9007199254740993}}';
  const given = backupOf(parseJsonExact(text) as BackupSpec);
  const { backup, errors } = await validateBackup(given, sourcesOf({}));
  expect(errors).toEqual([]);
  expect(exactJson(backup.spec)).toContain('"parallelFilesUpload":9007199254740993');
});

describe('a Backup that says nothing', () => {
  it('is completed as Velero completes it', async () => {
    const { backup, errors, location } = await validateBackup(backupOf({}), sourcesOf({}));
    expect(errors).toEqual([]);
    expect(location?.metadata.name).toBe('default');
    expect(backup).toMatchObject({
      metadata: {
        labels: { 'velero.io/storage-location': 'default' },
        annotations: {
          'velero.io/source-cluster-k8s-gitversion': 'v1.36.2',
          'velero.io/resource-timeout': '10m0s',
        },
      },
      spec: {
        ttl: '720h0m0s',
        csiSnapshotTimeout: '10m0s',
        itemOperationTimeout: '4h0m0s',
        includedNamespaces: ['*'],
        excludedNamespaceScopedResources: ['volumesnapshots.snapshot.storage.k8s.io'],
        excludedClusterScopedResources: ['volumesnapshotcontents.snapshot.storage.k8s.io'],
        snapshotMoveData: false,
      },
      status: { version: 1, formatVersion: '1.1.0', expiration: '1970-01-31T00:00:00Z' },
    });
  });

  it('goes to the location that is marked as default, whatever the server says', async () => {
    const marked = object('other', { spec: { default: true }, status: { phase: 'Available' } });
    const { backup } = await validateBackup(
      backupOf({}),
      sourcesOf({ backupstoragelocations: [AVAILABLE, marked] }),
    );
    expect(backup.spec.storageLocation).toBe('other');
  });

  it('leaves out namespaces that are labelled so, each once', async () => {
    const { backup } = await validateBackup(
      backupOf({ excludedNamespaces: ['a'] }),
      sourcesOf({ namespaces: [object('a'), object('b')] }),
    );
    expect(backup.spec.excludedNamespaces).toEqual(['a', 'b']);
  });
});

describe('a Backup for a location that no server has looked at yet', () => {
  const unseen = { backupstoragelocations: [object('default', { status: {} })] };
  const refusal =
    "backup can't be created because BackupStorageLocation default is in Unavailable status.";
  /** The location's status at the third read. */
  const after = (status: object): Partial<ValidationSources> & { asked: () => number } => {
    let asked = 0;
    const { client } = sourcesOf(unseen);
    const find = async (...question: Parameters<typeof client.find>): Promise<unknown> => {
      const found = await client.find(...question);
      return ++asked < 3 ? found : { ...found, status };
    };
    return { client: { ...client, find } as never, asked: () => asked, firstLookMs: 60_000 };
  };

  it('waits for the first look at it, and goes by what that finds', async () => {
    const good = after({ phase: 'Available' });
    expect(await errorsOf({}, unseen, good)).toEqual([]);
    expect(good.asked()).toBe(3);
    expect(await errorsOf({}, unseen, after({ phase: 'Unavailable' }))).toEqual([refusal]);
  });

  it('waits no longer than it may, and not at all where nobody looks', async () => {
    expect(await errorsOf({}, unseen, { firstLookMs: 1 })).toEqual([refusal]);
    expect(await errorsOf({}, unseen)).toEqual([refusal]);
  });

  it('ends with a cancel', async () => {
    const canceled = new AbortController();
    const sources = { ...sourcesOf(unseen), firstLookMs: 60_000 };
    const validated = validateBackup(backupOf({}), sources, canceled.signal);
    canceled.abort(new CodedError('CANCELED', 'by the user'));
    await expect(validated).rejects.toThrow('by the user');
  });
});

describe('a Backup is refused', () => {
  it.each<[string, BackupSpec, World, string[]]>([
    [
      'for a location that is not there',
      { storageLocation: 'x' },
      {},
      [
        'an existing backup storage location was not specified at backup creation time and the default x was not found. Please address this issue (see `velero backup-location -h` for options) and create a new backup. Error: BackupStorageLocation.velero.io "x" not found',
      ],
    ],
    [
      'when there is no location at all',
      {},
      { backupstoragelocations: [] },
      [
        'an existing backup storage location was not specified at backup creation time and the server default default does not exist. Please address this issue (see `velero backup-location -h` for options) and create a new backup. Error: BackupStorageLocation.velero.io "default" not found',
      ],
    ],
    [
      'for a location that is read-only and away',
      {},
      {
        backupstoragelocations: [
          object('default', { spec: { accessMode: 'ReadOnly' }, status: { phase: 'Unavailable' } }),
        ],
      },
      [
        "backup can't be created because backup storage location default is currently in read-only mode",
        "backup can't be created because BackupStorageLocation default is in Unavailable status.",
      ],
    ],
    [
      'where the API server refuses to say what there is',
      {},
      { broken: ['backupstoragelocations', 'volumesnapshotlocations', 'namespaces'] },
      [
        'error getting backup storage location: it is not allowed',
        'error listing volume snapshot locations: it is not allowed',
        'error getting namespace list: it is not allowed',
      ],
    ],
    [
      'for snapshot locations that are not there, or two of one provider',
      { volumeSnapshotLocations: ['x', 'a', 'b'] },
      {
        volumesnapshotlocations: [
          object('a', { spec: { provider: 'aws' } }),
          object('b', { spec: { provider: 'aws' } }),
        ],
      },
      [
        'a VolumeSnapshotLocation CRD for the location x with the name specified in the backup spec needs to be created before this snapshot can be executed. Error: VolumeSnapshotLocation.velero.io "x" not found',
        'more than one VolumeSnapshotLocation name specified for provider aws: b; unexpected name was a',
      ],
    ],
    [
      'for credentials of snapshot locations that are not there',
      {},
      {
        volumesnapshotlocations: [
          object('a', { spec: { provider: 'aws', credential: { name: 'gone', key: 'cloud' } } }),
          object('b', { spec: { provider: 'gcp', credential: { name: 'there', key: 'other' } } }),
          object('c', { spec: { provider: 'x', credential: { name: 'there', key: 'cloud' } } }),
        ],
        secrets: [object('there', { data: { cloud: 'YQ==' } })],
      },
      [
        'error adding credentials to volume snapshot location named a: unable to get credentials: unable to get key for secret: Secret "gone" not found',
        'error adding credentials to volume snapshot location named b: unable to get credentials: unable to get key for secret: "there" secret is missing data for key "other"',
      ],
    ],
    [
      'for snapshot locations that nobody chose',
      {},
      {
        volumesnapshotlocations: [
          object('a', { spec: { provider: 'aws' } }),
          object('b', { spec: { provider: 'aws' } }),
        ],
      },
      [
        'provider aws has more than one possible volume snapshot location, and none were specified explicitly or as a default',
      ],
    ],
    [
      'for both styles of filters',
      { includedResources: ['pods'], includedClusterScopedResources: ['nodes'] },
      {},
      [
        'include-resources, exclude-resources and include-cluster-resources are old filter parameters.\ninclude-cluster-scoped-resources, exclude-cluster-scoped-resources, include-namespace-scoped-resources and exclude-namespace-scoped-resources are new filter parameters.\nThey cannot be used together',
      ],
    ],
    [
      'for lists that contradict themselves, all of them',
      {
        includedNamespaces: ['a', '*'],
        includedNamespaceScopedResources: ['pods'],
        excludedNamespaceScopedResources: ['pods'],
        includedClusterScopedResources: ['nodes'],
        excludedClusterScopedResources: ['*'],
      },
      {},
      [
        "Invalid cluster-scoped included/excluded resource lists: when exclude is '*', include cannot have value",
        'Invalid namespace-scoped included/excluded resource lists: excludes list cannot contain an item in the includes list: pods',
        "Invalid included/excluded namespace lists: includes list must either contain '*' only, or a non-empty list of items",
      ],
    ],
    [
      'for older lists that contradict themselves',
      { includedResources: ['*', 'pods'], excludedResources: ['*'] },
      {},
      [
        "Invalid included/excluded resource lists: includes list must either contain '*' only, or a non-empty list of items",
        "Invalid included/excluded resource lists: excludes list cannot contain '*'",
        'Invalid included/excluded resource lists: excludes list cannot contain an item in the includes list: *',
      ],
    ],
    [
      'for two kinds of selectors, and for those that cannot be read',
      {
        labelSelector: { matchLabels: { 'bad key': 'x' } },
        orLabelSelectors: [{ matchExpressions: [{ key: 'a', operator: 'Near' }] }],
      },
      {},
      [
        'encountered labelSelector as well as orLabelSelectors in backup spec, only one can be specified',
        'Invalid labelSelector: the label selector cannot be used: "bad key" is no key of a label',
        'Invalid orLabelSelectors[0]: the label selector cannot be used: "Near" is not a valid label selector operator',
      ],
    ],
    [
      'for durations that are longer than any that Go has',
      { ttl: '2562048h', csiSnapshotTimeout: `${'9'.repeat(400)}h` },
      {},
      [
        'Invalid ttl "2562048h": it is not a duration such as 720h0m0s',
        `Invalid csiSnapshotTimeout "${'9'.repeat(400)}h": it is not a duration such as 720h0m0s`,
      ],
    ],
    [
      'for durations that are none',
      { ttl: '30d', csiSnapshotTimeout: 'soon', itemOperationTimeout: '-1h' },
      {},
      [
        'Invalid ttl "30d": it is not a duration such as 720h0m0s',
        'Invalid csiSnapshotTimeout "soon": it is not a duration such as 720h0m0s',
        'Invalid itemOperationTimeout "-1h": it is less than zero',
      ],
    ],
    [
      'for orders that name nothing',
      { orderedResources: { pods: 'a/b, c', persistentvolumes: 'a/b,,x', po: 'a/b' } },
      {},
      [
        'Invalid orderedResources for pods: "c" is not namespace/name',
        'Invalid orderedResources for persistentvolumes: there is an empty name',
        'Invalid orderedResources for persistentvolumes: "a/b" is not a name without a namespace',
        'Invalid orderedResources: "po" must be written "pods"',
      ],
    ],
    [
      'for hooks that could not run',
      {
        hooks: {
          resources: [
            {
              name: 'freeze',
              includedNamespaces: ['['],
              labelSelector: { matchLabels: { a: '!' } },
              pre: [{}, { exec: { command: [], onError: 'Stop', timeout: '30' } }],
              post: [{ exec: { command: ['x'], timeout: '-3s' } }],
            },
          ],
        },
      },
      {},
      [
        "Invalid hooks.resources[0] (freeze): wildcard pattern contains unclosed bracket '['",
        'Invalid hooks.resources[0] (freeze): the label selector cannot be used: "!" is no value of a label',
        'Invalid hooks.resources[0] (freeze): pre[0]: exec is required',
        'Invalid hooks.resources[0] (freeze): pre[1]: command is required',
        'Invalid hooks.resources[0] (freeze): pre[1]: onError "Stop" is neither Continue nor Fail',
        'Invalid hooks.resources[0] (freeze): pre[1]: timeout "30" is not a duration such as 30s',
        'Invalid hooks.resources[0] (freeze): post[0]: timeout is less than zero',
      ],
    ],
  ])('%s', async (_what, spec, world, expected) => {
    expect(await errorsOf(spec, world)).toEqual(expected);
  });

  it('for policies that cannot be read, or that do not go with older filters', async () => {
    const bad = { loadPolicies: () => Promise.reject(new Error('no such ConfigMap')) };
    expect(await errorsOf({}, {}, bad)).toEqual(['invalid resource policies: no such ConfigMap']);
    const both = {
      loadPolicies: () => Promise.resolve({ hasIncludeExclude: true, hasFineFilters: true }),
    };
    expect(await errorsOf({}, {}, both)).toEqual([]);
    expect(
      (await errorsOf({ includedResources: ['pods'] }, {}, both)).map(
        (text) => text.split('\n')[1],
      ),
    ).toEqual([
      'They cannot be used with include-exclude policies.',
      'They cannot be used with namespace-scoped or fine-grained global filter policies.',
    ]);
  });

  it('for a data mover that no living agent serves, and only for that', async () => {
    const asked: string[] = [];
    const isServed = (answer: boolean | undefined) => ({
      isServed: (mover: string) => {
        asked.push(mover);
        return Promise.resolve(answer);
      },
    });
    const moved = { snapshotMoveData: true, datamover: 'longshore' };
    expect(await errorsOf(moved, {}, isServed(false))).toEqual([
      'snapshotMoveData is set, but no node-agent runs that serves the data mover "longshore": start one, or name another data mover',
    ]);
    expect(await errorsOf(moved, {}, isServed(undefined))).toEqual([]);
    expect(await errorsOf(moved, {}, isServed(true))).toEqual([]);
    expect(await errorsOf({}, {}, isServed(false))).toEqual([]);
    expect(asked).toEqual(['longshore', 'longshore', 'longshore']);
  });

  it('for a data mover that a rule has volumes moved by, once each', async () => {
    const rule = (number: number, dataMover: string | undefined, isAlways: boolean) => ({
      rule: `rule ${number}`,
      dataMover,
      isAlways,
    });
    const withRules = (...movingRules: ReturnType<typeof rule>[]) => ({
      isServed: () => Promise.resolve(false),
      loadPolicies: () =>
        Promise.resolve({ hasIncludeExclude: false, hasFineFilters: false, movingRules }),
    });
    const rules = withRules(rule(1, 'a', true), rule(2, undefined, true), rule(3, 'b', false));
    const textOf = (reason: string, mover: string): string =>
      `${reason}, but no node-agent runs that serves the data mover "${mover}": start one, or name another data mover`;
    expect(await errorsOf({}, {}, rules)).toEqual([
      textOf('rule 1, has volumes moved', 'a'),
      textOf('rule 2, has volumes moved', 'velero'),
    ]);
    expect(await errorsOf({ snapshotMoveData: true, datamover: 'a' }, {}, rules)).toEqual([
      textOf('snapshotMoveData is set', 'a'),
      textOf('rule 3, has volumes moved', 'b'),
    ]);
  });
});

describe('what Velero would make of a list is not made', () => {
  it('an included VolumeSnapshot stays included, so that the list does not become one of everything', async () => {
    const only = ['volumesnapshots.snapshot.storage.k8s.io'];
    const { backup } = await validateBackup(backupOf({ includedResources: only }), sourcesOf({}));
    expect(backup.spec.includedResources).toEqual(only);
    expect(backup.spec.excludedResources).toContain(only[0]);
  });

  it('an order for a resource that the cluster does not have is a warning', async () => {
    const { errors, warnings } = await validateBackup(
      backupOf({ orderedResources: { things: 'a' } }),
      sourcesOf({}),
    );
    expect({ errors, warnings }).toEqual({
      errors: [],
      warnings: ['orderedResources: the cluster has no resource "things"'],
    });
  });

  it.each(['backupstoragelocations', 'volumesnapshotlocations', 'namespaces', 'secrets'])(
    'an API server that is away when it is asked for %s is no reason for a refusal',
    async (plural) => {
      const error = new CodedError('KUBE_UNAVAILABLE', 'the API server is away');
      const spec = { provider: 'aws', credential: { name: 'there', key: 'cloud' } };
      const volumesnapshotlocations = [object('a', { spec })];
      const away = sourcesOf({ volumesnapshotlocations, broken: [plural], error });
      await expect(validateBackup(backupOf({}), away)).rejects.toBe(error);
    },
  );

  it('nor is one that is away when policies are read', async () => {
    const error = new CodedError('KUBE_UNAVAILABLE', 'the API server is away');
    const away = sourcesOf({}, { loadPolicies: () => Promise.reject(error) });
    await expect(validateBackup(backupOf({}), away)).rejects.toBe(error);
  });

  it('a cancel is no reason for a refusal', async () => {
    const ended = AbortSignal.abort(new CodedError('CANCELED', 'canceled by shutdown'));
    const broken = sourcesOf({ broken: ['backupstoragelocations'] });
    await expect(validateBackup(backupOf({}), broken, ended)).rejects.toMatchObject({
      code: 'CANCELED',
    });
  });
});
