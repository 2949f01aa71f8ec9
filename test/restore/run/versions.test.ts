import { afterEach, describe, expect, it } from 'vitest';
import type { Contents } from '../../../src/archive/index.ts';
import { Results } from '../../../src/backup/index.ts';
import {
  type FinishedRestoreItem,
  type RestoreAction,
  runRestore,
  type VersionChoice,
  wantedVersions,
} from '../../../src/restore/index.ts';
import { chosenVersions } from '../../../src/restore/run/versions.ts';
import { versionChoice } from '../../../src/server/restores/run/version-choice.ts';
import { ItemCluster } from '../../support/item-cluster.ts';
import { contentsOf, stored } from '../support/backup.ts';
import { RestoreCluster } from '../support/cluster.ts';
import { restoreOf } from '../support/restore.ts';

const { signal } = new AbortController();
const TYPE = 'gadgets.new.example.com';

describe('of the versions that a backup has', () => {
  const folder = (version: string | undefined, isPreferred = false) => ({
    groupResource: TYPE,
    namespace: 'app',
    version,
    isPreferred,
  });
  it.each<
    [
      what: string,
      own: string,
      others: string[],
      cluster: string[],
      wanted: string[],
      chosen: string | undefined,
    ]
  >([
    ['what the cluster prefers', 'v1', ['v2'], ['v2', 'v1'], [], 'v2'],
    ['what both prefer', 'v1', ['v2'], ['v1', 'v2'], [], undefined],
    ["what the backup's cluster preferred", 'v1', ['v1beta1'], ['v2', 'v1'], [], undefined],
    [
      'the newest of the others',
      'v3',
      ['v1beta1', 'v1', 'v2alpha1'],
      ['v4', 'v1beta1', 'v1', 'v2alpha1'],
      [],
      'v1',
    ],
    [
      'the newest that is not stable',
      'v3',
      ['v1beta1', 'v1beta2'],
      ['v4', 'v1beta1', 'v1beta2'],
      [],
      'v1beta2',
    ],
    ['what the user wants', 'v1', ['v1beta1'], ['v1', 'v1beta1'], ['v7', 'v1beta1'], 'v1beta1'],
    ['nothing else where nothing is common', 'v1', ['v1beta1'], ['v2'], [], undefined],
    ['nothing else of a kind that is not served', 'v1', ['v1beta1'], [], [], undefined],
  ])('%s is restored', (_, own, others, cluster, wanted, chosen) => {
    const choice: VersionChoice = {
      served: () => ({ preferred: cluster[0], all: cluster }),
      wanted: new Map([[TYPE, wanted]]),
    };
    const folders = [
      folder(undefined, true),
      folder(own, true),
      ...others.map((version) => folder(version)),
    ];
    expect(chosenVersions(folders, choice).get(TYPE)).toBe(chosen);
  });

  it('users name some in lines of a ConfigMap', () => {
    const text = 'a.example.com=v2, v1\r\n\nno line\nb.example.com = v1beta1\n=v1\nc=\nd=a=b';
    expect([...wantedVersions(text)]).toEqual([
      ['a.example.com', ['v2', 'v1']],
      ['b.example.com', ['v1beta1']],
    ]);
  });
});

describe('a cluster', () => {
  it('serves some versions of a type, and has a ConfigMap of those that users want', async () => {
    const metadata = { name: 'enableapigroupversions', namespace: 'velero' };
    const data = { restoreResourcesVersionPriority: `${TYPE}=v1` };
    const { client } = new ItemCluster([{ kind: 'ConfigMap', metadata, data }]);
    const list = (group: string, version: string, plural: string) => ({
      group,
      version,
      resources: [{ plural }],
    });
    const discovery = {
      find: (name: string) =>
        name === TYPE
          ? { group: 'new.example.com', version: 'v2' }
          : { group: 'new.example.com.longer', version: 'v9' },
      lists: [
        list('', 'v1', 'pods'),
        list('new.example.com', 'v2', 'gadgets'),
        list('new.example.com', 'v1', 'gadgets'),
        list('new.example.com', 'v3', 'others'),
        list('new.example.com.longer', 'v9', 'gadgets'),
      ],
    };
    const about = { namespace: 'velero', signal };
    const choice = await versionChoice(client, discovery as never, about);
    expect(choice.served(TYPE)).toEqual({ preferred: 'v2', all: ['v2', 'v1'] });
    expect(choice.served('none.new.example.com')).toEqual({ preferred: undefined, all: [] });
    expect(choice.wanted.get(TYPE)).toEqual(['v1']);
  });
});

describe('a restore', () => {
  const opened: Contents[] = [];
  afterEach(async () => {
    for (const contents of opened.splice(0)) await contents.close();
  });

  it('makes objects in the version that is chosen, also those that an action asks for, and each once', async () => {
    const gadget = (name: string, version: string) =>
      stored(TYPE, `app/${name}`, { apiVersion: `new.example.com/${version}`, spec: { version } });
    const at = (name: string, version: string): [path: string, text: string] => [
      `resources/${TYPE}/${version}/namespaces/app/${name}.json`,
      JSON.stringify(gadget(name, version.split('-')[0] ?? '').object),
    ];
    const raw = Object.fromEntries([at('a', 'v1'), at('b', 'v1'), at('a', 'v2-preferredversion')]);
    const items = await contentsOf(
      [...['a', 'b', 'only'].map((name) => gadget(name, 'v2')), stored('configmaps', 'app/c')],
      raw,
    );
    opened.push(items);
    const cluster = new RestoreCluster();
    cluster.groups = {
      ...cluster.groups,
      'new.example.com': [{ plural: 'gadgets', kind: 'Gadget' }],
    };
    const asks: RestoreAction = {
      name: 'asks',
      appliesTo: { includedResources: ['configmaps'] },
      execute: () =>
        Promise.resolve({
          additionalItems: [
            { group: 'new.example.com', resource: 'gadgets', namespace: 'app', name: 'b' },
          ],
        }),
    };
    const log = new Results(undefined, undefined, 'sentence');
    const done: FinishedRestoreItem[] = [];
    await runRestore({
      client: cluster as never,
      discovery: await cluster.resources(),
      signal,
      log,
      items,
      restore: restoreOf(),
      actions: [asks],
      pollMs: 1,
      versions: { served: () => ({ preferred: 'v1', all: ['v1'] }), wanted: new Map() },
      sink: { put: (item) => Promise.resolve(void done.push(item)) },
    });
    expect([log.errorCount, log.warningCount]).toEqual([0, 0]);
    const versionOf = (name: string) => cluster.get(TYPE, `app/${name}`)?.apiVersion;
    expect(['a', 'b', 'only'].map(versionOf)).toEqual([
      'new.example.com/v1',
      'new.example.com/v1',
      // The backup has it in no other one.
      'new.example.com/v2',
    ]);
    expect(done.filter(({ kind }) => kind.endsWith('/Gadget'))).toHaveLength(3);
  });
});
