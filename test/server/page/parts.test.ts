import { createHash } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { SECOND_NS } from '../../../src/base/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  DAEMON_SETS,
  DATA_UPLOADS,
  PODS,
  type Resource,
  RESTORES,
  SCHEDULES,
  SECRETS,
} from '../../../src/kube/index.ts';
import { FakeApi } from './support/fake-api.ts';
import { fill, uploadOf } from './support/objects.ts';
import { type Answer, openPage, PATIENT, sectionOf, textOf } from './support/page.ts';

describe('the parts of the page', () => {
  const api = new FakeApi();
  let page: Awaited<ReturnType<typeof openPage>>;
  let answer: Answer;
  beforeAll(async () => {
    fill(api);
    page = await openPage(api);
    await vi.waitFor(async () => {
      answer = await page.ask('/');
      expect(answer.body).toContain('claim-moving');
    }, PATIENT);
  });
  afterAll(() => page[Symbol.asyncDispose]());

  it('backups and restores under way, with their volumes together', () => {
    const text = sectionOf(answer.body, 'under-way');
    expect(text).toMatch(
      /nightly-3 Backup … WaitingForPluginOperations 100 % 100 % 1,200 of 1,200 1 of 4 ended/,
    );
    expect(text).toMatch(/back-again Restore … InProgress/);
    expect(text).not.toContain('nightly-2');
  });

  it('volumes being moved, with bar, rate and time left', () => {
    const text = sectionOf(answer.body, 'moving');
    expect(text).toContain(
      'shop/claim-moving backup nightly-3 node-1 25 % 25 % 100.0 MiB of 400.0 MiB 1.0 MiB/s 5m',
    );
    expect(text).not.toContain('claim-done');
    expect(answer.body).toContain(
      '<progress max="100" value="25" aria-label="Bytes of shop/claim-moving">',
    );
  });

  it('operations that wait, and for what', () => {
    const text = sectionOf(answer.body, 'waiting');
    expect(text).toMatch(
      /shop\/claim-fresh DataUpload fresh backup nightly-3 … New 60m the data mover "somebody-elses", which no agent here serves/,
    );
    expect(text).toMatch(
      /shop\/web-0\/cache PodVolumeBackup pod-volume backup nightly-3 … Prepared/,
    );
    expect(text).toMatch(/shop\/claim-back DataDownload down restore back-again … Accepted/);
  });

  it('nodes, and what they move', () => {
    expect(sectionOf(answer.body, 'nodes')).toContain('node-1 1 2 1.0 MiB/s shop/claim-moving');
  });

  it('schedules, their next runs, and whether their last backups were good', () => {
    const text = sectionOf(answer.body, 'schedules');
    expect(text).toMatch(
      /nightly 0 2 \* \* \* ✓ Enabled 2026-11-27 02:00 \(in 16h\) nightly-2 2026-11-25 02:00 \(32h ago\) ! PartiallyFailed, 2 errors, 5 warnings; none was good so far nightly-3 … Waiting/,
    );
    expect(text).toMatch(/asleep 0 3 \* \* \* paused none none yet/);
    expect(text).toMatch(/late 0 8 \* \* \* ✓ Enabled due since 2026-11-26 08:00 \(2h ago\)/);
  });

  it('the calendar: the worst of each day, and how many', () => {
    const calendar = textOf(/<table class="calendar">.*?<\/table>/s.exec(answer.body)?.[0] ?? '');
    expect(calendar).toContain('Mon Tue Wed Thu Fri Sat Sun 10-28 0 10-29 0');
    expect(calendar).toMatch(/11-23 0 11-24 ✗ 1 11-25 ! 1 11-26 … 1 $/);
    expect(answer.body).toContain('aria-label="2026-11-25: 1 partially failed"');
    expect(answer.body).toContain('href="/?day=2026-11-25#backups"');
  });

  it('repositories: phase, maintenance, verification, size, and how much of what was moved was new', () => {
    const text = sectionOf(answer.body, 'repositories');
    expect(text).toContain(
      'shop-default-kopia shop default ✓ Ready 2026-11-26 09:10 (50m ago), the last try failed 2026-11-26 03:00 (7h ago), 25 % of its packs read, 3 damaged contents 1.3 GiB 1.0 GiB, 256.0 MiB new (25 %)',
    );
    expect(text).toContain('crm-default-kopia crm default ✗ NotReady never never not measured');
  });

  it('restores and locations', () => {
    expect(sectionOf(answer.body, 'restores')).toContain('back-again nightly-2 … InProgress 0 0');
    const text = sectionOf(answer.body, 'locations');
    expect(text).toContain(
      'default aws nightly-bucket ✓ Available 2026-11-26 09:59 (30s ago) default',
    );
    expect(text).toContain('far gcp ✗ Unavailable never read-only');
  });

  it('what went wrong, and what to do: what lasts first, then the newest', () => {
    const text = sectionOf(answer.body, 'attention');
    const subjects = [...text.matchAll(/[✗!] (\w+ \S+)/g)].map(([, subject]) => subject);
    expect(subjects).toEqual([
      'Location far',
      'No backup',
      'Repository crm-default-kopia',
      'Repository shop-default-kopia',
      'Repository shop-default-kopia',
      'Schedule late',
      'Schedule wrong',
      'Backup nightly-2',
      'Volume shop/claim-lost',
      'Backup by-hand',
    ]);
    expect(text).toContain('no route to host No backup can be stored there.');
    expect(text).toContain('longshore backup-location check far');
    expect(text).toContain(
      '2 errors What is missing, and what to do: longshore backup describe nightly-2',
    );
    expect(text).toContain('DataUpload lost: the snapshot was deleted while it was read');
    expect(text).toContain('there is no location "defualt" Nothing was done.');
  });

  it("Velero's well-known repository password, and how to change it", async () => {
    await using other = await openPage(
      new FakeApi().put(SECRETS as Resource<never>, {
        metadata: { name: 'velero-repo-credentials' },
        data: { 'repository-password': Buffer.from('static-passw0rd').toString('base64') },
      }),
    );
    await vi.waitFor(async () => {
      const text = sectionOf((await other.ask('/')).body, 'attention');
      expect(text).toMatch(
        /Repository password.*default.*longshore repository change-password-all/,
      );
      expect(text).not.toContain('static-passw0rd');
    }, PATIENT);
    expect(sectionOf(answer.body, 'attention')).not.toContain('Repository password');
  });

  it('a page for each backup, with its volumes', async () => {
    const { status, body } = await page.ask('/backups/nightly-3');
    const text = textOf(body);
    expect(status).toBe(200);
    expect(text).toContain('Errors 0 Warnings 0');
    expect(text).toContain('Operations 1 of 2 completed');
    expect(text).toContain('1 of 4 ended, 1.1 GiB moved');
    for (const name of ['claim-moving', 'claim-done', 'claim-fresh', 'web-0/cache']) {
      expect(text).toContain(name);
    }
    expect(text).not.toContain('claim-lost');
    const older = textOf((await page.ask('/backups/nightly-2')).body);
    expect(older).toMatch(/Errors 2 Warnings 5 Look into it longshore backup describe nightly-2/);
    expect(older).toMatch(/Took 31m Expires 2026-12-25 02:00 \(in 28d\)/);
    expect(older).toMatch(/claim-lost .* the snapshot was deleted while it was read/);
    expect(older).toMatch(/Restores of it .* back-again/);
  });

  it('a page for each restore, with its volumes, to which the restores lead', async () => {
    expect(answer.body.match(/<a href="\/restores\/back-again">/g)?.length).toBe(3);
    expect((await page.ask('/backups/nightly-2')).body).toContain('href="/restores/back-again"');
    const { status, body } = await page.ask('/restores/back-again');
    const text = textOf(body);
    expect(status).toBe(200);
    expect(text).toMatch(
      /Restore back-again .*Phase … InProgress What to do Nothing: it is under way. Errors 0 Warnings 0 Backup nightly-2 Began 2026-11-26 09:58 \(2m ago\) Volumes/,
    );
    expect(text).toContain('0 of 1 ended');
    expect(text).toMatch(/shop\/claim-back DataDownload down … Accepted/);
    expect(text).not.toContain('claim-moving');
    expect(body).toContain('<a href="/backups/nightly-2">');
  });

  it('an address of nothing is no page', async () => {
    for (const path of [
      '/backups/other',
      '/restores/nightly-2',
      '/restores/',
      '/restores/%',
      '/restores/back-again/files',
      '/backups/',
      '/backups/%',
      '/x',
      '/login',
      '/backups/a/b',
    ]) {
      expect((await page.ask(path)).status).toBe(404);
    }
  });

  it('it has headings, captions, scopes and names for those who do not see it', () => {
    const { body } = answer;
    expect([...body.matchAll(/<h1>/g)].length).toBe(1);
    expect(body).toMatch(/<html lang="en">/);
    expect(body).toMatch(/<body>\s*<a class="skip" href="#main">/);
    const tables = [...body.matchAll(/<table.*?<\/table>/gs)].map(([table]) => table);
    expect(tables.length).toBeGreaterThan(8);
    for (const table of tables) {
      expect(table).toMatch(/<caption/);
      expect(table).not.toMatch(/<th(?! scope="(?:col|row)")[ >]/);
    }
    const ids = [...body.matchAll(/ id="([^"]*)"/g)].map(([, id]) => id);
    expect(new Set(ids).size).toBe(ids.length);
    for (const [, target] of body.matchAll(/(?:href="#|aria-labelledby="|for=")([^"]+)"/g)) {
      expect(ids).toContain(target);
    }
  });

  it('nothing of it comes from elsewhere, and only its own style and script are let in', () => {
    const { body, headers } = answer;
    expect(body).not.toMatch(/https?:|src=|<img|<iframe|<meta http-equiv| style=| on\w+="/);
    const policy = String(headers['content-security-policy']);
    expect(policy).toContain("default-src 'none'");
    expect(policy).toContain("frame-ancestors 'none'");
    expect(policy).not.toContain('unsafe');
    for (const element of ['style', 'script']) {
      const text = new RegExp(`<${element}>(.*?)</${element}>`, 's').exec(body)?.[1] ?? '';
      const hash = createHash('sha256').update(text).digest('base64');
      expect(policy).toContain(`${element}-src 'sha256-${hash}'`);
    }
    expect(headers['x-content-type-options']).toBe('nosniff');
    expect(headers['referrer-policy']).toBe('same-origin');
    expect(headers['cache-control']).toBe('no-store');
    expect(headers['x-powered-by']).toBeUndefined();
  });
});

it('the page of a restore says why it failed, and what to do then', async () => {
  const restores: Readonly<Record<string, readonly [object, RegExp]>> = {
    invalid: [
      { phase: 'FailedValidation', validationErrors: ['there is no backup "gone"'] },
      /Why there is no backup "gone" What to do Nothing was restored\. Correct what is named, and make a new restore\. .*Backup gone, which this cluster does not have/,
    ],
    partial: [
      {
        phase: 'PartiallyFailed',
        errors: 3,
        warnings: 1,
        restoreItemOperationsAttempted: 4,
        restoreItemOperationsCompleted: 3,
        restoreItemOperationsFailed: 1,
        progress: { totalItems: 40, itemsRestored: 40 },
        startTimestamp: '2026-11-26T09:00:00Z',
        completionTimestamp: '2026-11-26T09:05:00Z',
      },
      /What is missing, and why: longshore restore describe partial\. Once the reason is gone, restore again: .* Errors 3 Warnings 1 .*Took 5m Items 100 % 100 % 40 of 40 Operations 3 of 4 completed, 1 failed/,
    ],
    failing: [
      { phase: 'WaitingForPluginOperationsPartiallyFailed', errors: 1 },
      /It goes on with the rest\. What is missing so far: longshore restore describe failing Errors/,
    ],
    warned: [
      { phase: 'Completed', warnings: 2 },
      /All was restored but what the warnings name, .*: longshore restore describe warned Errors 0 Warnings 2/,
    ],
    good: [{ phase: 'Completed' }, /What to do Nothing: all of it was restored\. Errors 0/],
  };
  const api = new FakeApi();
  const names = Object.keys(restores);
  api.put(
    RESTORES,
    ...names.map((name) => ({
      metadata: { name },
      spec: { backupName: 'gone' },
      status: restores[name]?.[0],
    })),
  );
  await using page = await openPage(api);
  await vi.waitFor(async () => {
    expect((await page.ask('/restores/good')).status).toBe(200);
  }, PATIENT);
  for (const name of names) {
    expect(textOf((await page.ask(`/restores/${name}`)).body)).toMatch(restores[name]?.[1] ?? /-/);
  }
  const { body } = await page.ask('/');
  expect(body).toContain('<a href="/restores/partial"><bdi>Restore partial</bdi></a>');
});

describe('what is under way', () => {
  const HEADINGS = ['under-way', 'moving', 'waiting', 'nodes'];
  const shownOf = (body: string): string[] =>
    HEADINGS.filter((id) => body.includes(`<h2 id="${id}">`));
  const linkedOf = (body: string): string[] =>
    HEADINGS.filter((id) => body.includes(`<a href="#${id}">`));

  it('is one line where it is nothing, which grows into the parts that have something', async () => {
    const api = new FakeApi();
    await using page = await openPage(api);
    let body = '';
    await vi.waitFor(async () => {
      ({ body } = await page.ask('/'));
      expect(sectionOf(body, 'under-way')).toBe(
        'Under way No backup and no restore is under way. No volume is being moved. No operation is waiting. No node moves a volume.',
      );
    }, PATIENT);
    expect(shownOf(body)).toEqual(['under-way']);
    expect(linkedOf(body)).toEqual(['under-way']);
    const status = { phase: 'InProgress', startTimestamp: '2026-11-26T09:50:00Z' };
    api.put(BACKUPS, { metadata: { name: 'b' }, status });
    api.put(DATA_UPLOADS, uploadOf('fresh', 'b', { phase: 'New' }));
    await vi.waitFor(async () => {
      api.clock.advance(2n * SECOND_NS);
      ({ body } = await page.ask('/'));
      expect(sectionOf(body, 'under-way')).toMatch(
        /b Backup … InProgress .* No volume is being moved. No node moves a volume.$/,
      );
      expect(sectionOf(body, 'waiting')).toContain('claim-fresh');
    }, PATIENT);
    expect(shownOf(body)).toEqual(['under-way', 'waiting']);
    expect(linkedOf(body)).toEqual(['under-way', 'waiting']);
  });

  it('nodes whose agents run and move nothing are named, at most ten', async () => {
    const api = new FakeApi();
    const agents = [{ name: 'a', args: ['node-agent', 'server'] }];
    api.put(DAEMON_SETS, {
      metadata: { name: 'agents' },
      spec: { template: { spec: { containers: agents } } },
    });
    const ownerReferences = [{ kind: 'DaemonSet', name: 'agents' }];
    api.put(
      PODS,
      ...Array.from({ length: 13 }, (_, at) => ({
        metadata: { name: `agent-${at}`, ownerReferences },
        spec: { nodeName: `node-${at + 10}`, containers: [] },
        status: { phase: at === 0 ? 'Pending' : 'Running' },
      })),
    );
    await using page = await openPage(api);
    await vi.waitFor(async () => {
      const { body } = await page.ask('/');
      expect(sectionOf(body, 'under-way')).toMatch(
        /No node moves a volume\. Idle: node-11, node-12, .*node-20, and 2 more\.$/,
      );
    }, PATIENT);
  });

  it('is not said to be nothing of what is not known', async () => {
    const api = new FakeApi();
    api.refused.add('restores').add('datauploads');
    await using page = await openPage(api);
    await vi.waitFor(async () => {
      const { body } = await page.ask('/');
      expect(sectionOf(body, 'under-way')).toBe(
        'Under way No backup is under way. Volumes have not been read yet.',
      );
    }, PATIENT);
  });
});

describe('what nobody is to take for safety', () => {
  const NEW = { phase: 'Completed', startTimestamp: '2026-11-26T02:00:00Z' };
  const OLD = { phase: 'Completed', startTimestamp: '2026-11-10T02:00:00Z' };
  const location = { metadata: { name: 'default' }, status: { phase: 'Available' } };
  const enabled = {
    metadata: { name: 'nightly' },
    spec: { schedule: '0 2 * * *' },
    status: { phase: 'Enabled', lastBackup: '2026-11-26T02:00:00Z' },
  };
  async function attentionOf(api: FakeApi): Promise<{ text: string; figures: string }> {
    await using page = await openPage(api);
    let answer: Answer | undefined;
    await vi.waitFor(async () => {
      answer = await page.ask('/');
      expect(answer.status).toBe(200);
    }, PATIENT);
    const body = answer?.body ?? '';
    return {
      text: sectionOf(body, 'attention'),
      figures: textOf(/<ul class="figures".*?<\/ul>/s.exec(body)?.[0] ?? ''),
    };
  }

  it('an empty cluster: it has no location, no backup and no schedule', async () => {
    const { text, figures } = await attentionOf(new FakeApi());
    expect(text).toContain('✗ No location there is no BackupStorageLocation');
    expect(text).toMatch(/✗ No backup .* nothing could be restored whole Make one: .*a schedule/);
    expect(text).not.toContain('Nothing failed');
    expect(figures).toContain('none complete backup');
  });

  it('backups that only failed, though a schedule makes them', async () => {
    const api = new FakeApi().put(BACKUP_STORAGE_LOCATIONS, location);
    api.put(SCHEDULES, enabled);
    const status = { ...OLD, phase: 'PartiallyFailed' };
    api.put(BACKUPS, { metadata: { name: 'b' }, status });
    const { text } = await attentionOf(api);
    expect(text).toMatch(/✗ No backup .*Make one: longshore backup create --help$/);
    expect(text).not.toContain('No location');
  });

  it('a complete backup of long ago', async () => {
    const api = new FakeApi().put(BACKUP_STORAGE_LOCATIONS, location);
    api.put(BACKUPS, { metadata: { name: 'b' }, status: OLD });
    const { text, figures } = await attentionOf(api);
    expect(text).toMatch(/! No new backup .* the newest backup that is Completed began 16d ago/);
    expect(figures).toContain('16d ago newest complete backup');
  });

  it('what may not be read is not said to be missing', async () => {
    const api = new FakeApi();
    api.refused.add('backupstoragelocations').add('schedules');
    const { text } = await attentionOf(api);
    expect(text).not.toContain('No location');
    expect(text).not.toContain('a schedule');
  });

  it('is none of it where a backup is complete and new', async () => {
    const api = new FakeApi().put(BACKUP_STORAGE_LOCATIONS, location);
    api.put(BACKUPS, { metadata: { name: 'b' }, status: NEW });
    const { text, figures } = await attentionOf(api);
    expect(text).toContain('✓ Nothing failed in the last seven days');
    expect(figures).toContain('8h ago newest complete backup');
  });

  it('a schedule whose last backup failed says how old the last good one is', async () => {
    const api = new FakeApi().put(BACKUP_STORAGE_LOCATIONS, location);
    api.put(SCHEDULES, enabled);
    const labels = { 'velero.io/schedule-name': 'nightly' };
    const failed = { ...NEW, phase: 'Failed' };
    api.put(
      BACKUPS,
      { metadata: { name: 'nightly-1', labels }, status: OLD },
      { metadata: { name: 'nightly-2', labels }, status: failed },
    );
    await using page = await openPage(api);
    await vi.waitFor(async () => {
      const { body } = await page.ask('/');
      expect(sectionOf(body, 'schedules')).toContain(
        'nightly-2 2026-11-26 02:00 (8h ago) ✗ Failed ; the last good one: nightly-1 2026-11-10 02:00',
      );
    }, PATIENT);
  });
});
