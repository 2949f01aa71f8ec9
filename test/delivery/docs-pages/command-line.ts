import * as fs from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { DocumentedCluster } from '../../support/docs/documented-cluster.ts';
import type { PageScript, Step } from '../../support/docs/follow-page.ts';
import { writePolicy } from './looking.ts';
import {
  makeOwnRepository,
  makeProdRepository,
  ownSnapshot,
  type OwnRepository,
} from './own-repository.ts';
import {
  installLongshore,
  makeBackup,
  makeSmallBackup,
  makeWaitingBackup,
  removeBackups,
  restartAgentsAtCancel,
  scaleShop,
  stopAgents,
  untilCompleted,
} from './prepared.ts';

const YES = ['[y/N]', 'y\n'] as const;

/** Password of all repositories where the page is followed. */
export const TYPED_PASSWORD = 'a-password-of-the-page';

/** The reference of the command line: the examples of all verbs, in the order of the page. */
export function commandLinePage(cluster: DocumentedCluster): PageScript {
  const { directory } = cluster;
  const own = makeOwnRepository(cluster, 'cli');
  return {
    page: 'docs/cli.md',
    replace: {
      '/tmp/restored': join(directory, 'of-tar'),
      '/tmp/for-the-issue.tar.gz': join(directory, 'for-the-issue.tar.gz'),
      '/tmp/dev': join(directory, 'dev'),
      '--repo /backup/repo --password-file /etc/backup-password': own.flags,
      '--repo /backup/repo': own.flags,
      '--bucket s3://backups/prod': '--bucket s3://velero',
      ' /data': ` ${directory}/data`,
      ' /restored': ` ${directory}/cli-restored`,
      'me@host:/data': () => own.source,
      '335744cff3425387e282aba1a0145b72': () => cluster.noted,
      '335744cf': () => cluster.noted.slice(0, 8),
      // Ports of this machine that others have.
      'longshore server': 'longshore server --metrics-address 127.0.0.1:0',
      'longshore node-agent server':
        'env NODE_NAME=node-1 longshore node-agent server --metrics-address 127.0.0.1:0',
    },
    steps: {
      ...backupSteps(cluster),
      ...restoreSteps(cluster),
      ...scheduleSteps(cluster),
      ...clusterSteps(cluster),
      ...repositorySteps(cluster, own),
      ...runningSteps(cluster),
    },
  };
}

function backupSteps(cluster: DocumentedCluster): Record<string, Step> {
  return {
    'longshore backup create before-upgrade': {
      before: async () => {
        await removeBackups(cluster, 'before-upgrade', 'nightly-20261126', 'nightly', 'shop');
        await makeBackup(cluster, 'nightly-20261126');
      },
    },
    'longshore backup create --from-schedule nightly': {
      before: () =>
        cluster.sh(
          'longshore schedule get nightly || longshore schedule create nightly --schedule "0 2 * * *" --include-namespaces shop --snapshot-move-data',
        ),
    },
    'longshore backup get nightly -o yaml': { before: () => makeSmallBackup(cluster, 'nightly') },
    'longshore backup logs nightly-20261125': {
      before: () => makeWaitingBackup(cluster, 'nightly-20261125'),
      after: ({ out }) => expect(out).toContain('nightly-20261125'),
    },
    'kubectl -n velero exec deploy/longshore-server -- longshore backup logs': {
      after: ({ out }) => expect(out).toContain('nightly-20261125'),
    },
    'longshore backup delete nightly': { answer: YES },
    'longshore backup delete -l env=test': {
      before: () => makeSmallBackup(cluster, 'a-test', 'env=test'),
      after: async () => expect(await cluster.sh('longshore backup get')).not.toContain('a-test'),
    },
    'longshore backup export nightly-20261125 --directory ./plain --bucket': {
      before: () =>
        cluster.sh('longshore repository archive-keys -n velero > keys && rm -r ./plain'),
      after: ({ out, err }) => expect(out + err).toContain('nightly-20261125'),
    },
    'longshore backup cancel nightly-20261125': {
      after: ({ out, err }) => expect(out + err).toMatch(/nightly-20261125 has ended/),
    },
  };
}

function restoreSteps(cluster: DocumentedCluster): Record<string, Step> {
  const restore = (name: string, flags: string): Promise<string> =>
    cluster.sh(`longshore restore create ${name} --from-backup nightly-20261126 ${flags}`);
  let restarted: Promise<void> | undefined;
  return {
    'longshore restore create shop-again': {
      before: async () => {
        await untilCompleted(cluster, 'backups.velero.io/shop');
        await cluster.sh('kubectl delete namespace shop-copy --ignore-not-found');
      },
    },
    // Claims that are there are not changed.
    'longshore restore create --from-backup shop --existing-resource-policy update --dry-run': {
      code: 3,
    },
    'longshore restore create --from-backup nightly-20261126 --existing-volume-data-policy': {
      before: async () => {
        await untilCompleted(cluster, 'restores.velero.io/shop-again');
        await scaleShop(cluster, 0);
      },
      after: () => scaleShop(cluster, 1),
    },
    'longshore restore create --from-schedule nightly': {
      before: () => untilCompleted(cluster, 'backups.velero.io -l velero.io/schedule-name=nightly'),
    },
    'longshore restore in-place nightly-20261126 shop/data --dry-run': {
      before: () => scaleShop(cluster, 0),
    },
    'longshore restore in-place nightly-20261126 shop/data --max-write': {
      after: () => scaleShop(cluster, 1),
    },
    'longshore restore get nightly': {
      before: () => restore('nightly', '--include-resources configmaps --labels env=prod --wait'),
    },
    'longshore restore get -l env=prod': { after: ({ out }) => expect(out).toContain('nightly') },
    'longshore restore delete nightly': { answer: YES },
    'longshore restore delete -l env=test': {
      before: () => restore('a-test', '--include-resources configmaps --labels env=test --wait'),
    },
    'longshore restore cancel nightly-20261125': {
      before: async () => {
        const before = await stopAgents(cluster);
        await restore('nightly-20261125', '--namespace-mappings shop:shop-third');
        await cluster.sh(
          `kubectl -n velero wait restores.velero.io/nightly-20261125 --for=jsonpath='{.status.phase}'=WaitingForPluginOperations --timeout=300s`,
        );
        restarted = restartAgentsAtCancel(cluster, before);
      },
      after: async ({ out, err }) => {
        await restarted;
        expect(out + err).toMatch(/nightly-20261125 has ended/);
      },
    },
    'longshore restore cancel shop/data': {
      before: async () => {
        await scaleShop(cluster, 0);
        const before = await stopAgents(cluster);
        await cluster.sh('longshore restore in-place nightly-20261126 shop/data');
        restarted = restartAgentsAtCancel(cluster, before);
      },
      after: async () => {
        await restarted;
        await scaleShop(cluster, 1);
      },
    },
  };
}

function scheduleSteps(cluster: DocumentedCluster): Record<string, Step> {
  const create = (name: string, flags = ''): Promise<string> =>
    cluster.sh(`longshore schedule create ${name} --schedule "0 2 * * *" ${flags}`);
  return {
    'longshore schedule create nightly': {
      before: () => cluster.sh('longshore schedule delete nightly --confirm'),
    },
    'longshore schedule delete nightly': { answer: YES },
    'longshore schedule delete -l env=test': {
      before: () => create('a-test', '--labels env=test'),
    },
    'longshore schedule pause nightly': { before: () => create('nightly') },
    'longshore schedule unpause nightly': {
      after: async () =>
        expect(await cluster.sh('longshore schedule get nightly -o yaml')).not.toContain(
          'paused: true',
        ),
    },
  };
}

function clusterSteps(cluster: DocumentedCluster): Record<string, Step> {
  const { directory } = cluster;
  return {
    'longshore browse nightly-20261126 shop/data /var/lib': {
      before: () => fs.mkdirSync(join(directory, 'of-tar'), { recursive: true }),
    },
    'longshore policy-check -f policy.yaml --backup': {
      before: async () => {
        writePolicy(cluster);
        await makeSmallBackup(cluster, 'nightly');
      },
    },
    'longshore uninstall': {
      after: async () => {
        await installLongshore(cluster);
        // Its repositories are known again with the first volume.
        await makeBackup(cluster, 'after-uninstall');
      },
    },
    'longshore debug -n': {
      after: () => expect(fs.existsSync(join(directory, 'for-the-issue.tar.gz'))).toBe(true),
    },
  };
}

function repositorySteps(cluster: DocumentedCluster, own: OwnRepository): Record<string, Step> {
  const { directory } = cluster;
  const note = async (): Promise<void> => {
    cluster.noted = await ownSnapshot(cluster, own);
  };
  return {
    'longshore snapshot create /data': {
      before: () => own.create(),
      after: note,
    },
    'longshore snapshot cat': { after: ({ out }) => expect(out).toBe('127.0.0.1 shop\n') },
    'longshore snapshot diff': {
      before: async () => {
        fs.writeFileSync(join(directory, 'data/etc/more'), 'more\n');
        await cluster.sh(`longshore snapshot create ${directory}/data ${own.flags}`);
      },
      after: ({ out }) => expect(out).toContain('etc/more'),
    },
    'longshore snapshot restore': {
      before: note,
      after: () => expect(fs.existsSync(join(directory, 'cli-restored/etc/hosts'))).toBe(true),
    },
    'longshore repository snapshots': {
      answer: ['assword', `${TYPED_PASSWORD}\n`],
      after: ({ out }) => expect(out).toContain('shop/data'),
    },
    'longshore repository create': { before: () => own.remove() },
    'LONGSHORE_NEW_PASSWORD=': { after: () => own.writePassword('...') },
    'longshore repository archive-keys --password-file': {
      before: () => {
        for (const name of ['first', 'second']) fs.writeFileSync(join(directory, name), name);
      },
    },
    'longshore repository archive-keys': {
      // Both names stand for the same cluster.
      before: () =>
        cluster.sh(`for name in old new; do
          kubectl config set-context $name --cluster="$(kubectl config view --minify -o jsonpath='{.contexts[0].context.cluster}')" \
            --user="$(kubectl config view --minify -o jsonpath='{.contexts[0].context.user}')"
        done`),
    },
    'longshore repository add-archive-keys': {
      before: () => fs.writeFileSync(join(directory, 'keys'), `${'0a'.repeat(32)}\n`),
    },
    'longshore repository change-password-all': {
      before: () => fs.writeFileSync(join(directory, 'new-password'), 'another-password'),
    },
    'longshore repository connect --repo s3://backups/prod/': {
      before: () => makeProdRepository(cluster),
    },
    'longshore repository connections': {
      after: ({ out }) => expect(out).toContain('/backup/cli'),
    },
    'longshore policy delete': {
      before: () => cluster.sh(`longshore policy set ${own.source} --keep-daily 7 ${own.flags}`),
    },
    'longshore policy list': { after: ({ out }) => expect(out).toContain('(global)') },
  };
}

function runningSteps(cluster: DocumentedCluster): Record<string, Step> {
  return {
    'longshore server': { until: 'serving metrics and health' },
    'longshore node-agent server': {
      before: () =>
        cluster.sh(
          `kubectl -n velero create configmap node-agent-config --from-literal node-agent-config.json='{}'`,
        ),
      until: 'serving metrics and health',
    },
    'longshore node-agent status --watch': { until: 'nothing is under way' },
    'longshore dev up': { until: 'Press Ctrl-C to stop' },
    'longshore completion zsh': {
      before: () => cluster.sh('mkdir -p ~/.zfunc ~/.config/fish/completions'),
    },
  };
}
