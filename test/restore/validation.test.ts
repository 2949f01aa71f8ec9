import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { CodedError, exactJson, parseJsonExact } from '../../src/base/index.ts';
import {
  type KubeClient,
  type KubeObject,
  type Resource,
  type Restore,
  type RestoreSpec,
  validLabel,
} from '../../src/kube/index.ts';
import {
  leftOutWarning,
  type RestoreValidationSources,
  validateRestore,
} from '../../src/restore/index.ts';
import { parsePolicyConfigMap } from '../../src/volume-policy/index.ts';
import {
  CASES,
  objectsOf,
  restoreOf,
  type RestoreCase,
} from '../golden/restore-validation/cases.ts';
import { ItemCluster } from '../support/item-cluster.ts';

interface Answer {
  readonly phase: string;
  readonly errors?: readonly string[];
  readonly spec: RestoreSpec;
}
const ANSWERS = JSON.parse(
  readFileSync(new URL('../golden/restore-validation/answers.json', import.meta.url), 'utf8'),
) as Answer[];

const sourcesOf = (
  client: KubeClient,
  more: Partial<RestoreValidationSources> = {},
): RestoreValidationSources => ({
  client,
  itemOperationTimeout: '4h0m0s',
  readPolicies: (config) => {
    const { rules, includeExcludePolicy } = parsePolicyConfigMap(config);
    return {
      hasVolumePolicies: rules.length > 0,
      hasIncludeExclude: includeExcludePolicy !== undefined,
    };
  },
  ...more,
});

const validated = (each: RestoreCase, more?: Partial<RestoreValidationSources>) => {
  const { client } = new ItemCluster(objectsOf(each));
  return validateRestore(restoreOf(each) as unknown as Restore, sourcesOf(client, more));
};

const NOT_WHOLE =
  "invalid InitContainer in restore hook, it doesn't have Command, Name or Image field";
const LIKE = 'the label selector cannot be used: "Like" is not a valid label selector operator';
const NAME_FORM =
  /^Invalid namespaceMapping of "[ac]" to "(B_)?": a lowercase RFC 1123 label must /;
const OWN_WORDS = "Go's words for it are others";
const AT_ONCE = 'Velero tells one reason, and the next one when that is mended';
const TOO_LATE = 'Velero finds it when the restore runs, and fails';
/** Where ours says something else or more, and why. */
const OTHERWISE: Readonly<
  Record<string, readonly [why: string, errors: readonly (string | RegExp)[]]>
> = {
  'a backup that runs': [
    TOO_LATE,
    [
      'Backup s is in phase InProgress, and nothing of it is stored: choose another one, or wait until it is over',
    ],
  ],
  'a label selector that cannot be read': [TOO_LATE, [`Invalid labelSelector: ${LIKE}`]],
  'or label selectors one of which cannot be read': [
    TOO_LATE,
    [`Invalid orLabelSelectors[1]: ${LIKE}`],
  ],
  'an init container whose command is a text': [
    OWN_WORDS,
    ['invalid init container in restore hook "h": its command is no list of texts'],
  ],
  'an init container whose command has a number': [
    OWN_WORDS,
    ['invalid init container in restore hook "h": its command is no list of texts'],
  ],
  'an init container whose name is a number': [
    OWN_WORDS,
    ['invalid init container in restore hook "h": its name is no text'],
  ],
  'a hook with a selector that cannot be read': [
    AT_ONCE,
    [`invalid restore hooks: ${LIKE}`, `invalid init container in restore hook "g": ${NOT_WHOLE}`],
  ],
  'policies of another version': [
    OWN_WORDS,
    [
      'invalid restore resource policies: fail to read the ResourcePolicies from ConfigMap velero/p: invalid resource policies in ConfigMap velero/p: line 1: version: is "v9": the only version is v1',
    ],
  ],
  'modifiers of another kind': [
    'Velero restores without them, and says nothing',
    [
      'the resourceModifier of the restore is a Secret, and must be a ConfigMap: Velero would restore everything as it was',
    ],
  ],
  'a wrong policy and wrong modifiers': [
    AT_ONCE,
    [
      'invalid restore resource policies: invalid ResourcePolicy kind "Secret", only "configmap" is supported',
      'failed to get resource modifiers configmap velero/m',
    ],
  ],
  'a wrong source and wrong hooks': [
    AT_ONCE,
    [
      'Either a backup or schedule must be specified as a source for the restore, but not both',
      `invalid init container in restore hook "h": ${NOT_WHOLE}`,
      'Invalid ExistingResourcePolicy: x',
    ],
  ],
  'namespaces that are renamed to what is no name': [
    TOO_LATE,
    [
      NAME_FORM,
      NAME_FORM,
      `Invalid namespaceMapping of "d" to "${'x'.repeat(64)}": must be no more than 63 characters`,
    ],
  ],
};

describe.each(CASES.map((each, i) => ({ each, answer: ANSWERS[i] as Answer })))(
  'a Restore of $each.about',
  ({ each, answer }) => {
    const [why, more] = OTHERWISE[each.about] ?? [];
    it(`is judged as by Velero${why === undefined ? '' : `, but ${why}`}`, async () => {
      const given = structuredClone(each.spec);
      const { errors, restore } = await validated(each);
      const theirs = answer.errors ?? [];
      if (more) {
        expect(errors).toEqual(
          more.map((one) =>
            typeof one === 'string' ? one : (expect.stringMatching(one) as string),
          ),
        );
        expect(errors).not.toEqual(theirs);
        // Each reason of Velero's has a reason here, in other words.
        const isKept = (theirs.length === 0) === (answer.phase === 'InProgress');
        expect(isKept && errors.length >= theirs.length).toBe(true);
      } else expect(errors).toEqual(theirs);
      expect(decided(restore.spec)).toEqual(decided(answer.spec));
      expect(restore.status?.validationErrors ?? []).toEqual(errors);
      expect(each.spec).toEqual(given);
    });
  },
);

it('has an answer for each question, and a question for each difference', () => {
  expect(ANSWERS).toHaveLength(CASES.length);
  const abouts = CASES.map(({ about }) => about);
  expect(abouts).toEqual(expect.arrayContaining(Object.keys(OTHERWISE)));
});

/** What validation decides of it. */
const decided = ({
  backupName = '',
  scheduleName = '',
  excludedResources,
  itemOperationTimeout,
}: RestoreSpec) => ({ backupName, scheduleName, excludedResources, itemOperationTimeout });

const FROM_B: RestoreSpec = { backupName: 'b' };
const errorsOf = async (
  spec: object,
  more?: Partial<RestoreValidationSources>,
  objects?: readonly object[],
): Promise<readonly string[]> =>
  (await validated({ about: '', spec, ...(objects && { objects }) }, more)).errors;

describe('a Restore', () => {
  it('comes with its backup and its location', async () => {
    const { backup, location, errors } = await validated({ about: '', spec: FROM_B });
    expect([backup?.metadata.name, location?.metadata.name]).toEqual(['b', 'default']);
    expect(errors).toEqual([]);
  });

  it.each([
    [{ itemOperationTimeout: 'soon' }, 'Invalid itemOperationTimeout "soon": it is not a duration'],
    [{ itemOperationTimeout: '1d' }, 'Invalid itemOperationTimeout "1d": it is not a duration'],
    [{ itemOperationTimeout: '-1h' }, 'Invalid itemOperationTimeout "-1h": it is less than zero'],
  ])('whose time cannot be read is refused: %o', async (more, text) => {
    const [error, ...others] = await errorsOf({ ...FROM_B, ...more });
    expect(error).toContain(text);
    expect(others).toEqual([]);
  });

  it("with times of hooks that Velero's programs cannot read is refused", async () => {
    const postHooks = [
      { init: { initContainers: [], timeout: '1d' } },
      { exec: { command: ['x'], execTimeout: 'x', waitTimeout: '-1s' } },
      { exec: { command: ['x'], execTimeout: '30s' } },
    ];
    const hooks = { resources: [{ name: 'h', postHooks }, { postHooks: null }] };
    expect(await errorsOf({ ...FROM_B, hooks })).toEqual([
      'invalid restore hook "h": timeout "1d" is not a duration such as 30s',
      'invalid restore hook "h": execTimeout "x" is not a duration such as 30s',
      'invalid restore hook "h": waitTimeout is less than zero',
    ]);
  });

  it('whose init containers are none is refused', async () => {
    const postHooks = [
      { init: { initContainers: [null, 'x', [], { name: 'c', image: 7 }, { name: null }] } },
    ];
    const hooks = { resources: [{ postHooks }] };
    expect(await errorsOf({ ...FROM_B, hooks })).toEqual(
      [
        'it is no object',
        'it is no object',
        'it is no object',
        'its image is no text',
        NOT_WHOLE,
      ].map((error) => `invalid init container in restore hook "": ${error}`),
    );
  });

  it.each(['', 'New', 'Queued', 'ReadyToStart', 'InProgress', 'FailedValidation'])(
    'of a backup in phase %s is refused',
    async (phase) => {
      const objects = objectsOf({ about: '', spec: {} }).map((each) =>
        (each as KubeObject).kind === 'Backup' ? { ...each, status: { phase } } : each,
      );
      const [error] = await errorsOf(FROM_B, undefined, objects);
      expect(error).toContain(
        `Backup b is in phase ${phase || 'New'}, and nothing of it is stored`,
      );
    },
  );

  it('of a backup that is being deleted is refused, with what can be done where that has failed', async () => {
    const objects = objectsOf({ about: '', spec: {} }).map((each) =>
      (each as KubeObject).kind === 'Backup' ? { ...each, status: { phase: 'Deleting' } } : each,
    );
    const errors = await errorsOf(FROM_B, undefined, objects);
    expect(errors).toHaveLength(1);
    expect(errors[0]).toContain('Backup b is in phase Deleting, and a part of it may be gone');
    expect(errors[0]).toContain('"kubectl delete backups.velero.io b"');
  });

  it('with a number that is longer than those of JavaScript is validated, and keeps it', async () => {
    const text = '{"backupName":"b","uploaderConfig":{"parallelFilesDownload":9007199254740993}}';
    const spec = parseJsonExact(text) as object;
    const { errors, restore } = await validated({ about: '', spec });
    expect(errors).toEqual([]);
    expect(exactJson(restore.spec)).toContain('"parallelFilesDownload":9007199254740993');
  });

  it('of a schedule whose name is too long for a label gets its backup, and keeps the name', async () => {
    const schedule = 's'.repeat(70);
    const labels = { 'velero.io/schedule-name': validLabel(schedule) };
    const objects = objectsOf({ about: '', spec: {} }).map((each) => {
      const { kind, metadata } = each as KubeObject;
      const isBackup = kind === 'Backup' && metadata.name === 'b';
      return isBackup ? { ...each, metadata: { ...metadata, labels } } : each;
    });
    const { errors, restore } = await validated({
      about: '',
      spec: { scheduleName: schedule },
      objects,
    });
    expect(errors).toEqual([]);
    expect(restore.spec).toMatchObject({ backupName: 'b', scheduleName: schedule });
  });

  it('takes a newer backup from the bucket only with a signature, if the cluster made one itself', async () => {
    const start = (day: number) => ({ status: { phase: 'Completed', startTimestamp: `2026-11-0${day}T00:00:00Z` } }); // prettier-ignore
    const labels = { 'velero.io/schedule-name': 'nightly' };
    const synced = { 'longshore.io/synced-uid': 'u' };
    const backups = (annotations: object) => [
      { metadata: { name: 'own', labels, uid: 'own' }, ...start(1) },
      { metadata: { name: 'foreign', labels, uid: 'foreign', annotations }, ...start(2) },
    ];
    const newestOf = async (all: readonly object[]) => {
      const client = { list: () => Promise.resolve(all), find: () => Promise.resolve(undefined) };
      const given = {
        metadata: { namespace: 'velero', name: 'r' },
        spec: { scheduleName: 'nightly' },
      };
      const sources = sourcesOf(client as unknown as KubeClient);
      const { restore } = await validateRestore(given as unknown as Restore, sources);
      told = leftOutWarning(restore);
      return restore.spec.backupName;
    };
    let told: string | undefined;
    expect(await newestOf(backups(synced))).toBe('own');
    expect(told).toContain('backup foreign of this schedule is newer than own, and was left out');
    expect(await newestOf(backups({ ...synced, 'longshore.io/signed': 'true' }))).toBe('foreign');
    expect(told).toBeUndefined();
    expect(await newestOf(backups(synced).slice(1))).toBe('foreign');
  });

  describe('of a schedule that another cluster has by the same name', () => {
    const ofMaker = (name: string, day: number, uid?: string) => ({
      kind: 'Backup',
      metadata: {
        name,
        namespace: 'velero',
        labels: {
          'velero.io/schedule-name': 's',
          ...(uid && { 'longshore.io/schedule-uid': uid }),
        },
      },
      spec: { storageLocation: 'default' },
      status: { phase: 'Completed', startTimestamp: `2026-11-0${day}T02:00:00Z` },
    });
    const schedule = { kind: 'Schedule', metadata: { name: 's', namespace: 'velero', uid: 'own' } };
    const places = objectsOf({ about: '', spec: {} }).filter(
      (each) => (each as KubeObject).kind !== 'Backup',
    );
    const synced = (uid: string) => ({ annotations: { 'longshore.io/synced-schedule-uid': uid } });
    const own = ofMaker('own', 2, 'own');
    const back = ofMaker('back', 3);
    Object.assign(back.metadata, synced('own'));
    const others = ofMaker('others', 4);
    Object.assign(others.metadata, synced('other'));
    const unknown = ofMaker('unknown', 3);

    it.each([
      ['gets its own backup', [schedule, own, others], 'own'],
      ['gets its own one that the sync brought back', [schedule, own, back, others], 'back'],
      ['gets a newer one of Velero, which names no schedule', [schedule, own, unknown], 'unknown'],
      ['gets the newest where its own schedule has none', [schedule, unknown, others], 'others'],
      ['gets none of an old schedule', [schedule, own, ofMaker('old', 5, 'old')], 'own'],
      ['gets the newest where it has no schedule', [own, others], 'others'],
    ])('%s', async (_, objects, backupName) => {
      const about = { about: '', spec: { scheduleName: 's' } };
      const { restore } = await validated({ ...about, objects: [...places, ...objects] });
      expect(restore.spec.backupName).toBe(backupName);
    });
  });

  it('whose modifiers cannot be read is refused', async () => {
    const resourceModifier = { kind: 'ConfigMap', name: 'm' };
    const config = { kind: 'ConfigMap', metadata: { name: 'm', namespace: 'velero' }, data: {} };
    const objects = [...objectsOf({ about: '', spec: {} }), config];
    const readModifiers = () => {
      throw new CodedError('BAD', 'no rules');
    };
    const spec = { ...FROM_B, resourceModifier };
    expect(await errorsOf(spec, { readModifiers }, objects)).toEqual([
      'Error in parsing resource modifiers provided in configmap velero/m: no rules',
    ]);
    expect(await errorsOf(spec, {}, objects)).toEqual([]);
  });

  describe('while the server has modifiers for all restores', () => {
    const defaultModifiers = 'all';
    const data = {};
    const config = { kind: 'ConfigMap', metadata: { name: 'all', namespace: 'velero' }, data };
    const objects = [...objectsOf({ about: '', spec: {} }), config];
    const modifierOf = async (more: RestoreSpec): Promise<string | undefined> => {
      const spec = { ...FROM_B, ...more };
      const { restore } = await validated({ about: '', spec, objects }, { defaultModifiers });
      return restore.spec.resourceModifier?.name;
    };

    it('uses them unless the restore says otherwise', async () => {
      const own = { kind: 'ConfigMap', name: 'm' };
      expect(await modifierOf({})).toBe('all');
      expect(await modifierOf({ skipDefaultResourceModifier: false })).toBe('all');
      expect(await modifierOf({ skipDefaultResourceModifier: true })).toBeUndefined();
      expect(await modifierOf({ resourceModifier: own })).toBe('m');
    });

    it('refuses a restore that would be made without them', async () => {
      const gone = objectsOf({ about: '', spec: {} });
      expect(await errorsOf(FROM_B, { defaultModifiers }, gone)).toEqual([
        'failed to get resource modifiers configmap velero/all',
      ]);
    });
  });

  describe('while the API server', () => {
    const failing = (plural: string, error: Error) => {
      const { client } = new ItemCluster(objectsOf({ about: '', spec: {} }));
      const guarded =
        (call: 'find' | 'list') =>
        (resource: Resource<KubeObject>, ...rest: [never, never]): Promise<unknown> =>
          resource.plural === plural ? Promise.reject(error) : client[call](resource, ...rest);
      return { find: guarded('find'), list: guarded('list') } as unknown as KubeClient;
    };
    const refused = new CodedError('KUBE_FORBIDDEN', 'nobody may know');
    const away = new CodedError('KUBE_UNAVAILABLE', 'the API server is away');

    it.each<[string, RestoreSpec, string]>([
      ['backups', FROM_B, "Error retrieving backup: can't find backup velero/b: nobody may know"],
      ['backups', { scheduleName: 's' }, 'Unable to list backups for schedule'],
      ['backupstoragelocations', FROM_B, 'Error retrieving backup: nobody may know'],
      [
        'configmaps',
        { ...FROM_B, resourcePolicy: { kind: 'configmap', name: 'p' } },
        'invalid restore resource policies: fail to get ResourcePolicies velero/p ConfigMap: nobody may know',
      ],
      [
        'configmaps',
        { ...FROM_B, resourceModifier: { kind: 'configmap', name: 'm' } },
        'failed to get resource modifiers configmap velero/m',
      ],
    ])('does not say what it has of %s, is refused', async (plural, spec, text) => {
      expect(await errorsOf(spec, { client: failing(plural, refused) })).toEqual([text]);
    });

    const asked: [string, RestoreSpec][] = [
      ['backups', FROM_B],
      ['backups', { scheduleName: 's' }],
      ['backupstoragelocations', FROM_B],
      ['configmaps', { ...FROM_B, resourcePolicy: { kind: 'configmap', name: 'p' } }],
      ['configmaps', { ...FROM_B, resourceModifier: { kind: 'configmap', name: 'm' } }],
    ];

    it.each(asked)('is away when it is asked for %s, is not refused', async (plural, spec) => {
      await expect(errorsOf(spec, { client: failing(plural, away) })).rejects.toBe(away);
    });

    it.each(asked)('is asked for %s, is canceled and not refused', async (plural, spec) => {
      const stop = new Error('stop');
      const sources = sourcesOf(failing(plural, away));
      const given = restoreOf({ about: '', spec }) as unknown as Restore;
      await expect(validateRestore(given, sources, AbortSignal.abort(stop))).rejects.toBe(stop);
    });
  });
});

it.each(['none', 'full', 'incremental', '', null])(
  'existingVolumeDataPolicy may be %j, as in Velero 1.19',
  async (existingVolumeDataPolicy) => {
    const each = CASES.find(({ about }) => about === 'a backup') as (typeof CASES)[number];
    const { errors: before } = await validated(each);
    const spec = { ...each.spec, existingVolumeDataPolicy };
    expect((await validated({ ...each, spec })).errors).toEqual(before);
    const wrong = { ...each, spec: { ...each.spec, existingVolumeDataPolicy: 'Full' } };
    expect((await validated(wrong)).errors).toEqual([
      ...before,
      'Invalid ExistingVolumeDataPolicy: Full',
    ]);
  },
);
