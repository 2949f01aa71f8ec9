import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { messageOf, silentLogger } from '../../../src/base/index.ts';
import type { Backup, KubeObject, VolumeSnapshot } from '../../../src/kube/index.ts';
import { openActions, type OpenActions } from '../../../src/plugin/index.ts';
import { type ActionCase, backupFor, CASES } from '../../golden/backup-actions/cases.ts';
import { plain } from '../../golden/backup-actions/plain.ts';
import { ItemCluster } from '../../support/item-cluster.ts';

interface Answer {
  readonly error?: string;
  readonly item?: object;
  readonly additionalItems?: readonly object[];
  readonly operationId?: string;
  readonly itemsToUpdate?: readonly object[];
  readonly relatedItems?: readonly object[];
  readonly progress?: {
    readonly completed: boolean;
    readonly err: string;
    readonly started?: string | undefined;
  };
  readonly snapshots?: readonly KubeObject[];
  readonly contents?: readonly KubeObject[];
  readonly uploads?: readonly KubeObject[];
}

const ANSWERS = JSON.parse(
  readFileSync(new URL('../../golden/backup-actions/answers.json', import.meta.url), 'utf8'),
) as Answer[];
const { signal } = new AbortController();

const OURS: Readonly<Record<string, keyof OpenActions>> = {
  'velero.io/csi-pvc-backupper': 'pvcBackup',
  'velero.io/csi-volumesnapshot-backupper': 'snapshotBackup',
  'velero.io/csi-volumesnapshotcontent-backupper': 'contentBackup',
  'velero.io/csi-volumesnapshotclass-backupper': 'classBackup',
};
const ASKED = CASES.map((each, i) => ({ each, answer: ANSWERS[i] as Answer })).filter(
  ({ each: { action } }) => action in OURS || action === 'velero.io/pvc',
);

/** The driver of a case. */
function cutter({ cut }: ActionCase) {
  return (made: KubeObject, cluster: ItemCluster): void => {
    if (made.kind !== 'VolumeSnapshot' || !cut) return;
    const { namespace, name } = made.metadata;
    const uid = (made.metadata.uid = 'of-snapshot');
    const content = `content-of-${name}`;
    (made as VolumeSnapshot).status = {
      boundVolumeSnapshotContentName: content,
      readyToUse: true,
    };
    cluster.add({
      kind: 'VolumeSnapshotContent',
      metadata: { name: content },
      spec: {
        driver: 'dir.csi.example',
        deletionPolicy: 'Delete',
        source: {},
        volumeSnapshotRef: { namespace, name, uid },
      },
      status: cut,
    });
  };
}

async function ask(each: ActionCase): Promise<Answer> {
  const cluster = new ItemCluster(each.objects ?? [], cutter(each));
  const actions = openActions({ client: cluster.client, logger: silentLogger });
  const item = each.item as KubeObject;
  const backup = backupFor(each) as unknown as Backup;
  const before = structuredClone(item);
  try {
    if (each.action === 'velero.io/pvc')
      return { relatedItems: await actions.pvcBlock().relatedItems(item, backup, { signal }) };
    const action = actions[OURS[each.action] as 'pvcBackup']();
    if (each.operationId !== undefined)
      return { progress: await action.progress(each.operationId, backup, { signal }) };
    const output = await action.execute(item, backup, { signal });
    return {
      item: output.item ?? item,
      additionalItems: output.additionalItems ?? [],
      ...(output.operationId && { operationId: output.operationId }),
      itemsToUpdate: output.postOperationItems ?? [],
      snapshots: cluster.all('VolumeSnapshot'),
      contents: cluster.all('VolumeSnapshotContent'),
      uploads: cluster.all('DataUpload'),
    };
  } catch (error) {
    return { error: messageOf(error) };
  } finally {
    expect(item).toEqual(before);
  }
}

/**
 * Uses Velero's names of created objects. They are random in Velero. Ours follow from the backup
 * and the claim.
 */
function renamed(answer: Answer, each: ActionCase): Answer {
  const { metadata } = backupFor(each);
  const snapshot = answer.snapshots?.[0]?.metadata.name;
  const upload = answer.uploads?.[0]?.metadata.name;
  let text = JSON.stringify(answer);
  if (snapshot?.startsWith('velero-')) text = text.replaceAll(snapshot, 'velero-one-made');
  if (upload !== undefined)
    text = text.replaceAll(upload, `${(metadata as { name: string }).name}-made`);
  text = text.replace(/(app\/one\/)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ/, '$1<time>');
  return JSON.parse(text) as Answer;
}

const secretOf = (rest: object) => ({ ...rest, additionalItems: [] });
const NAMELESS = 'no object is without a name, and a Secret is in a namespace';
const NO_ANNOTATIONS = 'no API server has such an object; it is in the backup as it is';
const WHOSE_AGENTS =
  'which agents serve a mover is for them to say: an upload waits for its agent, as for one that restarts';
/** Where ours is meant to be another one, and why. */
const NO_DATA = 'a claim without a volume has no data to lose: it is in the backup as it is';
const OTHERWISE: Readonly<Record<string, readonly [why: string, ours: object]>> = {
  'a claim that a pod uses twice, for its block': [
    'a pod is in a block once',
    { relatedItems: [{ name: 'volume-1' }, { name: 'p1' }] },
  ],
  'a claim that has left its group, for its block': [
    'Velero looks at how many claims there are, and takes the one that it finds for this one',
    { relatedItems: [{ name: 'volume-1' }, { name: 'two' }] },
  ],
  'a snapshot class with a secret whose name is empty': [NAMELESS, secretOf({})],
  'a snapshot class with a secret whose namespace is empty': [NAMELESS, secretOf({})],
  'a content with a secret whose name is empty': [NAMELESS, secretOf({})],
  'a content with a secret whose namespace is empty': [NAMELESS, secretOf({})],
  'a snapshot class with annotations that are a text': [NO_ANNOTATIONS, secretOf({})],
  'a content with annotations that are a text': [NO_ANNOTATIONS, secretOf({})],
  'a claim of a driver that is to be moved by agents which are not there': [
    WHOSE_AGENTS,
    { operationId: 'du-uid-b.uid-1' },
  ],
  'a claim of a driver that is to be moved by agents which are not ready': [
    WHOSE_AGENTS,
    { operationId: 'du-uid-b.uid-1' },
  ],
  'a claim of a driver whose volume is gone': [NO_DATA, { additionalItems: [], snapshots: [] }],
  'a claim of a driver that has no volume': [NO_DATA, { additionalItems: [], snapshots: [] }],
  'a claim of a driver that is not bound': [NO_DATA, { additionalItems: [], snapshots: [] }],
  'the operation of a snapshot whose content has an error without a word': [
    'Velero takes an error without a word for success',
    { progress: { completed: false, err: '' } },
  ],
  'the operation of a snapshot that is not ready while its content is': [
    'what is stored at the end is to say that it is ready',
    { progress: { completed: false, err: '' } },
  ],
};

/** What decides about an operation. */
const ending = ({ completed, err, started }: NonNullable<Answer['progress']>) => ({
  completed,
  err,
  started: started === undefined ? undefined : Date.parse(started),
});

describe.each(ASKED)('$each.about', ({ each, answer }) => {
  const [why, otherwise] = OTHERWISE[each.about] ?? [];
  it(why === undefined ? 'is as with Velero' : `is not as with Velero: ${why}`, async () => {
    const ours = renamed(await ask(each), each);
    expect(ours.error ?? '').not.toMatch(/Cannot read|is not a|undefined/);
    const isSame = (): void => {
      if (answer.error !== undefined) {
        // The end of an operation, for Velero's server, as an error is.
        const { completed = false, err = '' } = ours.progress ?? {};
        expect(ours.error ?? (completed && err)).toBeTruthy();
      } else if (answer.progress)
        expect(ours.progress && ending(ours.progress)).toEqual(ending(answer.progress));
      else isAnswer(ours, { item: each.item, ...answer }, each);
    };
    if (otherwise) {
      expect(ours).toMatchObject(otherwise);
      expect(isSame).toThrow();
    } else isSame();
  });
});

const saidIn = ({ item, additionalItems, operationId, itemsToUpdate }: Answer) => ({
  item,
  additionalItems,
  operationId,
  itemsToUpdate,
});

function isAnswer(ours: Answer, theirs: Answer, { kind }: ActionCase): void {
  if (kind === 'ItemBlockAction') expect(ours.relatedItems).toEqual(theirs.relatedItems ?? []);
  else expect(plain(saidIn(ours))).toEqual(plain(saidIn(theirs)));
  // With more labels here.
  expect(plain(ours.snapshots ?? [])).toMatchObject(plain(theirs.snapshots ?? []) as object);
  expect(plain(ours.contents ?? [])).toMatchObject(plain(theirs.contents ?? []) as object);
  expect(plain(ours.uploads ?? [])).toMatchObject(plain(theirs.uploads ?? []) as object);
}

it('has a question for each difference, and asks each action', () => {
  const abouts = ASKED.map(({ each }) => each.about);
  expect(abouts).toEqual(expect.arrayContaining(Object.keys(OTHERWISE)));
  const asked = new Set(ASKED.map(({ each }) => each.action));
  expect([...asked].sort()).toEqual([...Object.keys(OURS), 'velero.io/pvc'].sort());
});
