import { expect, it } from 'vitest';
import { matchesGlob } from '../../src/base/index.ts';
import {
  BadVolumePolicyError,
  combineWithPolicy,
  factsOfPv,
  factsOfPvc,
  ignoredInGlobal,
  parsePolicyConfigMap,
  parseVolumePolicies,
  planSnapshot,
  readPolicyFile,
  SKIP_REASONS,
  skippedReason,
  SkippedVolumes,
  viewOf,
  type VolumeView,
  withGlobalPolicies,
} from '../../src/volume-policy/index.ts';

const pvc = factsOfPvc({
  metadata: { name: 'data', namespace: 'app', uid: 'u', labels: { env: 'prod', app: 'db' } },
  spec: {
    volumeName: 'pv',
    volumeMode: 'Filesystem',
    accessModes: ['ReadWriteOnce', 'ReadOnlyMany'],
    storageClassName: 'gp2',
    resources: { requests: { storage: '5Gi' } },
  },
  status: { phase: 'Bound' },
});
const pv = factsOfPv({
  metadata: { name: 'pv' },
  spec: {
    capacity: { storage: '10Gi' },
    storageClassName: 'gp2',
    claimRef: { namespace: 'app', name: 'data', uid: 'u' },
    csi: { driver: 'ebs.csi.aws.com', volumeAttributes: { protocol: 'nfs', zone: 'a' } },
  },
});
const volume = viewOf({ pv, pvc });

const matches = (conditions: string, of: VolumeView = volume): boolean =>
  parseVolumePolicies(
    `version: v1\nvolumePolicies: [{conditions: ${conditions}, action: {type: skip}}]`,
  ).actionFor(of) !== undefined;

it.each([
  ['{}', true],
  ['{capacity: "0,100Gi"}', true],
  ['{capacity: "10Gi,10Gi"}', true],
  ['{capacity: "10Gi,"}', true],
  ['{capacity: " 11Gi , 0 "}', false],
  ['{capacity: ",9Gi"}', false],
  ['{storageClass: [gp3, gp2]}', true],
  ['{storageClass: [gp3]}', false],
  ['{csi: {}}', true],
  ['{csi: {driver: ebs.csi.aws.com}}', true],
  ['{csi: {driver: other}}', false],
  ['{csi: {driver: ebs.csi.aws.com, volumeAttributes: {protocol: nfs}}}', true],
  ['{csi: {driver: ebs.csi.aws.com, volumeAttributes: {protocol: smb}}}', false],
  ['{nfs: {}}', false],
  ['{volumeTypes: [nfs, csi]}', true],
  ['{volumeTypes: [nfs]}', false],
  ['{pvcLabels: {env: prod}}', true],
  ['{pvcLabels: {env: prod, more: x}}', false],
  ['{pvcLabels: {__proto__: x}}', false],
  ['{pvcPhase: [Bound]}', true],
  ['{pvcPhase: [Pending, Lost]}', false],
  ['{pvcVolumeMode: Filesystem}', true],
  ['{pvcVolumeMode: Block}', false],
  ['{pvcAccessModes: [ReadOnlyMany, ReadWriteOnce]}', true],
  ['{pvcAccessModes: [ReadWriteOnce]}', false],
  ['{pvcAccessModes: [ReadOnlyMany, ReadWriteOnce, ReadWriteMany]}', false],
  ['{storageClass: [gp2], pvcPhase: [Pending]}', false],
])('conditions %s of a bound volume: %s', (conditions, expected) => {
  expect(matches(conditions)).toBe(expected);
});

it.each([
  ['{}', true],
  ['{capacity: "5Gi,5Gi"}', true],
  ['{capacity: "6Gi,"}', false],
  ['{storageClass: [gp2]}', true],
  ['{pvcPhase: [Pending]}', true],
  ['{csi: {}}', false],
  ['{pvcAccessModes: [ReadWriteOnce]}', false],
])(
  'conditions %s of a PVC without a volume, which is what it asks for: %s',
  (conditions, expected) => {
    const unbound = viewOf({ pvc: { ...pvc, phase: 'Pending', volumeName: '' } });
    expect(matches(conditions, unbound)).toBe(expected);
  },
);

it('knows neither modes nor labels of a volume that no PVC has', () => {
  const alone = viewOf({ pv });
  expect(matches('{pvcVolumeMode: Filesystem}', alone)).toBe(false);
  expect(matches('{pvcAccessModes: [ReadWriteOnce]}', alone)).toBe(false);
  expect(matches('{pvcLabels: {env: prod}}', alone)).toBe(false);
  expect(matches('{storageClass: [gp2]}', alone)).toBe(true);
});

it('takes NFS by server, by path, or by both', () => {
  const nfs = { ...volume, csi: undefined, nfs: { server: 'a', path: '/x' }, type: 'nfs' };
  expect(matches('{nfs: {}}', nfs)).toBe(true);
  expect(matches('{nfs: {server: a}}', nfs)).toBe(true);
  expect(matches('{nfs: {path: /x}}', nfs)).toBe(true);
  expect(matches('{nfs: {server: a, path: /y}}', nfs)).toBe(false);
});

it('accepts image, a type of volume of the Velero after 1.18', () => {
  const text =
    'version: v1\nvolumePolicies: [{conditions: {volumeTypes: [image]}, action: {type: skip}}]';
  expect(parseVolumePolicies(text).warnings).toEqual([]);
});

it('takes the first rule that is about the volume', () => {
  const policies = parseVolumePolicies(`
version: v1
volumePolicies:
- conditions: {storageClass: [gp3]}
  action: {type: skip}
- conditions: {csi: {}}
  action: {type: custom, parameters: {mover: acme, levels: [1, 2.5, true, null], deep: {a: b}}}
- conditions: {}
  action: {type: fs-backup}
`);
  const parameters = { mover: 'acme', levels: [1, 2.5, true, null], deep: { a: 'b' } };
  expect(policies.actionFor(volume)).toEqual({ type: 'custom', parameters });
  expect(policies.ruleFor(volume)).toMatchObject({ number: 2, place: { line: 6 } });
  expect(policies.actionFor({ ...volume, csi: undefined })).toEqual({ type: 'fs-backup' });
});

it('asks the rules of the backup first, then those for all backups', () => {
  const own = parseVolumePolicies(
    'version: v1\nvolumePolicies: [{conditions: {csi: {}}, action: {type: snapshot}}]',
  );
  const global = parseVolumePolicies(
    'version: v1\nvolumePolicies: [{action: {type: skip}}]\nincludeExcludePolicy: {includedClusterScopedResources: [a]}',
    { source: 'global' },
  );
  const both = withGlobalPolicies(own, global);
  expect(both?.actionFor(volume)?.type).toBe('snapshot');
  const rule = both?.ruleFor({ ...volume, csi: undefined });
  expect(rule).toMatchObject({ action: { type: 'skip' }, place: { source: 'global' } });
  expect(both?.includeExcludePolicy).toBeUndefined();
  expect(ignoredInGlobal(global)).toEqual(['includeExcludePolicy']);
  expect(withGlobalPolicies(undefined, global)?.rules).toHaveLength(1);
  expect(withGlobalPolicies(own, undefined)).toBe(own);
  expect(withGlobalPolicies(undefined, undefined)).toBeUndefined();
});

it('names every problem at once, with its line and what would be right', () => {
  const text = `version: v2
volumePolicies:
- conditions:
    capacity: "10Gi"
    storageclass: [gp2]
    csi: {volumeAttributes: {a: b}}
  action: {type: snapshots}
- conditions: [gp2]
  action:
    type: fs-backup
    parameters: {dataMover: acme}
- action: {type: skip}
  action: {type: skip}
includeExcludePolicy:
  includedClusterScopedResources: [a, "*"]
  excludedClusterScopedResources: [a]
`;
  let error: unknown;
  try {
    parseVolumePolicies(text, { source: 'policy.yaml', firstLine: 10 });
  } catch (thrown) {
    error = thrown;
  }
  expect(error).toBeInstanceOf(BadVolumePolicyError);
  const { problems, code, message } = error as BadVolumePolicyError;
  expect(code).toBe('BAD_VOLUME_POLICY');
  expect(problems.map(({ line, path, text: what }) => `${line} ${path}: ${what}`)).toEqual([
    '10 version: is "v2": the only version is v1',
    '13 volumePolicies[0].conditions.capacity: "10Gi" is no range: write "low,high", such as "0,100Gi" or "10Gi,"; "10Gi," is at least that much, and "0,10Gi" at most',
    '14 volumePolicies[0].conditions.storageclass: is unknown: did you mean storageClass?',
    '15 volumePolicies[0].conditions.csi.volumeAttributes: needs the driver beside it, such as "driver: ebs.csi.aws.com"',
    '16 volumePolicies[0].action.type: "snapshots" is no action: did you mean snapshot?',
    '17 volumePolicies[1].conditions: must be a map of conditions, and is a list',
    '20 volumePolicies[1].action.parameters.dataMover: is for the action snapshot or snapshot-datamover, and not for fs-backup',
    '22 volumePolicies[2].action: stands twice, first in line 21; keep one',
    '24 includeExcludePolicy.includedClusterScopedResources[1]: "*" cannot be used in a policy: name the resources',
    '25 includeExcludePolicy.excludedClusterScopedResources[0]: "a" is both included and excluded; keep one',
  ]);
  expect(message).toMatch(/^invalid resource policies in policy.yaml: line 10: version: is "v2"/);
});

it('keeps the message short when there are many problems', () => {
  const rules = Array.from({ length: 500 }, () => '- action: {type: no}\n').join('');
  expect(() => parseVolumePolicies(`version: v1\nvolumePolicies:\n${rules}`)).toThrow(
    /; and 90 more$/,
  );
});

it('warns of what Velero accepts and nobody means', () => {
  const { warnings } = parseVolumePolicies(`version: v1
volumePolicies:
- conditions: {volumeTypes: [CSI], pvcPhase: [bound], pvcLabels: {build: 017}}
  action: {type: snapshot, parameters: {snapshotClas: x}}
- conditions: {}
  action: {type: skip}
- conditions: {storageClass: [""]}
  action: {type: fs-backup}
---
version: v1
`);
  expect(warnings.map(({ line, text }) => `${line} ${text}`)).toEqual([
    '3 "CSI" is not a type of volume that is known: did you mean csi?',
    '3 017 is read as 15; write "017" in quotes if that is meant',
    '3 "bound" is not a phase of PVCs that is known: did you mean Bound?',
    '4 nothing reads this parameter of snapshot',
    '7 never holds: a volume without a class matches no storageClass',
    '9 only the first document of the text counts; remove what follows "---"',
    '5 is about every volume, so that the rule behind it never counts; move it to the end',
  ]);
});

it('reads a ConfigMap with exactly one key, of any name', () => {
  const metadata = { namespace: 'velero', name: 'policies' };
  const text = 'version: v1\nvolumePolicies: [{action: {type: skip}}]';
  expect(parsePolicyConfigMap({ metadata, data: { any: text } }).rules).toHaveLength(1);
  const none =
    'ConfigMap velero/policies must have exactly one key whose value is the policies, and has none';
  expect(() => parsePolicyConfigMap({ metadata })).toThrow(none);
  expect(() => parsePolicyConfigMap({ metadata, data: { a: text, b: text } })).toThrow(/has 2$/);
});

it('reads a file of policies and the manifest of a ConfigMap alike, by the lines of the file', () => {
  const policies = 'version: v1\nvolumePolicies:\n- action: {type: skip}\n';
  expect(readPolicyFile(policies, 'f').rules[0]?.place.line).toBe(3);
  const manifest = (text: string): string =>
    `apiVersion: v1\nkind: ConfigMap\nmetadata: {name: p}\ndata:\n  policies: |\n${text.replaceAll(/^(?=.)/gm, '    ')}`;
  expect(readPolicyFile(manifest(policies), 'f').rules[0]?.place.line).toBe(8);
  expect(() => readPolicyFile(manifest('version: v3\n'), 'f')).toThrow('line 6: version: is "v3"');
  const json = JSON.stringify({ kind: 'ConfigMap', data: { p: policies } });
  expect(readPolicyFile(json, 'f').rules).toHaveLength(1);
  expect(() => readPolicyFile('kind: Secret\ndata: {a: b}\n', 'f')).toThrow('must be ConfigMap');
  expect(() => readPolicyFile('kind: ConfigMap\n', 'f')).toThrow('has none');
  expect(() => readPolicyFile('kind: ConfigMap\ndata: {a: b, c: d}\n', 'f')).toThrow('has 2');
});

it('follows anchors, aliases and merge keys as Velero does', () => {
  const { rules } = parseVolumePolicies(`version: v1
volumePolicies:
- conditions: &gp {storageClass: &classes [gp2], capacity: "1Gi,"}
  action: &skip {type: skip}
- conditions: {<<: *gp, capacity: "2Gi,", pvcPhase: [Bound]}
  action: *skip
- conditions: {storageClass: *classes}
  action: {<<: *skip, type: snapshot}
`);
  expect(rules.map(({ action }) => action.type)).toEqual(['skip', 'skip', 'snapshot']);
  expect(rules[1]?.conditions).toMatchObject({ storageClass: ['gp2'], pvcPhase: ['Bound'] });
  expect(rules[1]?.conditions.capacity.low).toBe(2n * 2n ** 30n * 10n ** 9n);
  expect(rules[2]?.conditions.storageClass).toEqual(['gp2']);
});

it('takes each way of a snapshot for what it says: three actions, three kinds of volumes', () => {
  const way = (type: string | undefined, kind: string, movesData: boolean): string => {
    const plan = planSnapshot({
      action: type === undefined ? undefined : { type: type as 'snapshot' },
      isCsi: kind === 'csi',
      isKnownToSnapshotter: kind === 'native',
      movesData,
    });
    return plan.way ?? `${plan.isRefused ? 'refused: ' : ''}${plan.reason}`;
  };
  const [notCsi, none] = ['refused: the volume is of no CSI driver', SKIP_REASONS.noSnapshotter];
  const refused = `refused: ${none}`;
  const table = [
    undefined,
    'snapshot',
    'snapshot-csi',
    'snapshot-native',
    'snapshot-datamover',
  ].map((type) =>
    [false, true].map((moves) => ['csi', 'native', 'none'].map((kind) => way(type, kind, moves))),
  );
  const usual = [
    ['csi', 'native', none],
    ['moved', 'native', none],
  ];
  expect(table).toEqual([
    usual,
    usual,
    [
      ['csi', notCsi, notCsi],
      ['csi', notCsi, notCsi],
    ],
    [
      [refused, 'native', refused],
      [refused, 'native', refused],
    ],
    [
      ['moved', notCsi, notCsi],
      ['moved', notCsi, notCsi],
    ],
  ]);
  // A snapshotter may know a volume of a CSI driver too.
  const both = { isCsi: true, isKnownToSnapshotter: true, movesData: true };
  expect(planSnapshot({ ...both, action: { type: 'snapshot-native' } })).toEqual({ way: 'native' });
  // Without the feature a CSI volume is one as any other, unless a rule names the way.
  const without = { ...both, hasCsi: false };
  expect(planSnapshot({ ...without, action: undefined })).toEqual({ way: 'native' });
  expect(planSnapshot({ ...without, action: { type: 'snapshot-csi' } })).toEqual({
    way: undefined,
    reason: 'the server runs without --features=EnableCSI',
    isRefused: true,
  });
  // A CSI snapshot is one of a PVC.
  const free = { ...both, hasClaim: false };
  expect(planSnapshot({ ...free, action: undefined })).toMatchObject({ isRefused: false });
  expect(planSnapshot({ ...free, action: { type: 'snapshot-csi' } })).toMatchObject({
    isRefused: true,
  });
});

it('records why volumes were left out, in the words and the order of Velero', () => {
  const skipped = new SkippedVolumes();
  skipped.track('pv-2', 'volumeSnapshot', SKIP_REASONS.noSnapshot);
  skipped.track('pv-2', 'podvolume', SKIP_REASONS.optedOut('web-1'));
  skipped.track('pv-1', 'any', SKIP_REASONS.policyOfAction, 'rule 2 of velero/policies, line 7');
  skipped.track('pv-3', 'any', SKIP_REASONS.matchedSkip);
  skipped.track('', 'any', 'of nobody');
  skipped.untrack('pv-3');
  skipped.track('pv-3', 'podvolume', 'too late: it is backed up');
  const [first, second, ...more] = skipped.summary();
  expect(more).toEqual([]);
  expect(first).toMatchObject({ name: 'pv-1', rule: 'rule 2 of velero/policies, line 7' });
  expect(second && skippedReason(second)).toBe(
    'podvolume: opted out due to annotation in pod web-1;volumeSnapshot: not satisfy the criteria for VolumePolicy or the legacy snapshot way;',
  );
});

it('adds the resources of a policy to the filters of a backup, which count more', () => {
  const { includeExcludePolicy } = parseVolumePolicies(`version: v1
includeExcludePolicy:
  includedNamespaceScopedResources: [secret, pods, unknown, deploy]
  excludedNamespaceScopedResources: [configmaps, po]
  excludedClusterScopedResources: [nodes]
`);
  if (!includeExcludePolicy) throw new Error('no includeExcludePolicy');
  const names: Record<string, string> = {
    secret: 'secrets',
    pods: 'pods',
    po: 'pods',
    deploy: 'deployments.apps',
    configmaps: 'configmaps',
    nodes: 'nodes',
  };
  const own = {
    cluster: { includes: ['*'], excludes: [] },
    namespaced: { includes: [], excludes: ['deployments.*'] },
  };
  expect(combineWithPolicy(own, includeExcludePolicy, (name) => names[name])).toEqual({
    cluster: { includes: ['*'], excludes: [] },
    namespaced: { includes: ['secrets'], excludes: ['deployments.*', 'configmaps', 'pods'] },
  });
});

it.each([
  ['app', 'app', true],
  ['app', 'app2', false],
  ['app-*', 'app-1', true],
  ['*', '', true],
  ['a?c', 'abc', true],
  ['a?c', 'ac', false],
  ['[ab]x', 'bx', true],
  ['[a-c]x', 'bx', true],
  ['[!a-c]x', 'bx', false],
  ['*a*b*', 'xaxbx', true],
  ['*a*b', 'xbxa', false],
  [`${'*a'.repeat(40)}b`, 'a'.repeat(5000), false],
])('the pattern %s and the name %s: %s', (pattern, text, expected) => {
  expect(matchesGlob(pattern, text)).toBe(expected);
});
