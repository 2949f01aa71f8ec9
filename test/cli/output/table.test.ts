import { describe, expect, it } from 'vitest';
import {
  BACKUP_COLUMNS,
  RESTORE_COLUMNS,
  SCHEDULE_COLUMNS,
} from '../../../src/cli/backups/columns.ts';
import { LOCATION_COLUMNS } from '../../../src/cli/locations/get.ts';
import { columnsOf } from '../../../src/cli/policy/check-rows.ts';
import { type Column, fittingTable, loadWidths, wideTable } from '../../../src/cli/output/table.ts';

const COLUMNS: Column[] = [
  { title: 'ID', shorten: (id) => id.slice(0, 8) },
  { title: 'SOURCE', min: 8, cut: 'start' },
  { title: 'WHEN' },
  { title: 'ROOT', leaveOut: 2 },
  { title: 'KEPT BY', min: 10, leaveOut: 1 },
  { title: 'NOTE' },
];
const ROWS = [
  [
    '335744cff3425387e282aba1a0145b72',
    'me@host:/a/long/path',
    'today',
    'k123',
    'latest-1, daily-1',
    '',
  ],
  ['aaaaaaaaf3425387e282aba1a0145b72', 'me@host:/b', 'yesterday', 'k456', 'nothing', ''],
];

it('columns after wide characters are straight, and wide cells are cut to their width', async () => {
  const columns: Column[] = [{ title: 'SOURCE', min: 6 }, { title: 'WHEN' }];
  const rows = [
    ['データベース', 'today'],
    ['plain', 'today'],
    ['e\u0301te\u0301', 'today'],
  ];
  await loadWidths(rows);
  expect(wideTable(columns, rows)).toEqual([
    'SOURCE        WHEN',
    'データベース  today',
    'plain         today',
    'e\u0301te\u0301           today',
  ]);
  expect(fittingTable(columns, rows, 14)).toEqual([
    'SOURCE   WHEN',
    'データ…  today',
    'plain    today',
    'e\u0301te\u0301      today',
  ]);
});

describe('a table', () => {
  it('has all where nothing bounds it', () => {
    expect(wideTable(COLUMNS, ROWS)[1]).toBe(
      '335744cff3425387e282aba1a0145b72  me@host:/a/long/path  today      k123  latest-1, daily-1',
    );
    expect(fittingTable(COLUMNS, ROWS, 200)).toEqual([
      expect.not.stringContaining('NOTE'),
      ...wideTable(COLUMNS, ROWS).slice(1),
    ]);
  });

  it('first shortens, then leaves out, then cuts', () => {
    expect(fittingTable(COLUMNS, ROWS, 80)[1]).toBe(
      '335744cf  me@host:/a/long/path  today      k123  latest-1, daily-1',
    );
    expect(fittingTable(COLUMNS, ROWS, 50)).toEqual([
      'ID        SOURCE      WHEN       ROOT  KEPT BY',
      '335744cf  …long/path  today      k123  latest-1, …',
      'aaaaaaaa  me@host:/b  yesterday  k456  nothing',
    ]);
    expect(fittingTable(COLUMNS, ROWS, 32)[1]).toBe('335744cf  …/long/path  today');
  });

  it.each([120, 80, 60, 40, 30, 29, 20])('is never wider than %i', (width) => {
    for (const line of fittingTable(COLUMNS, ROWS, width)) {
      expect(line.length).toBeLessThanOrEqual(width);
    }
  });

  it('becomes names and values where it cannot be that narrow, and loses nothing', () => {
    expect(fittingTable(COLUMNS, ROWS, 28)).toEqual([
      'ID       335744cf',
      'SOURCE   me@host:/a/long/pat',
      '         h',
      'WHEN     today',
      'ROOT     k123',
      'KEPT BY  latest-1, daily-1',
      '',
      'ID       aaaaaaaa',
      'SOURCE   me@host:/b',
      'WHEN     yesterday',
      'ROOT     k456',
      'KEPT BY  nothing',
    ]);
  });

  it('without rows is its header, and shows control characters of others as text', () => {
    expect(fittingTable(COLUMNS, [], 80)).toHaveLength(1);
    const [, row = ''] = fittingTable([{ title: 'A' }], [['\u001b[31m']], 80);
    expect(row).toBe('\\x1b[31m');
  });
});

describe.each<[string, readonly Column[], string[]]>([
  ['backups', [...BACKUP_COLUMNS], ['NAME']],
  ['restores', [...RESTORE_COLUMNS], ['NAME']],
  ['schedules', [...SCHEDULE_COLUMNS], ['NAME']],
  ['locations', [...LOCATION_COLUMNS], ['NAME']],
  ['policy-check', columnsOf([], false), ['NAMESPACE', 'VOLUME']],
])('the table of %s', (_, columns, names) => {
  /** Every cell is as long as it gets. */
  const rowWith = (length: number): string[] =>
    columns.map(({ title }) => (names.includes(title) ? 'n'.repeat(length) : 'some words here'));

  it.each([40, 80, 120])('never cuts a name at %i columns: other columns go first', (width) => {
    for (const length of [1, 24, 40, 63, 79, 120, 253]) {
      const lines = fittingTable(columns, [rowWith(length), rowWith(3)], width);
      const whole = new RegExp(`(?:^|\\s)n{${length}}(?:\\s|$)`);
      expect(lines.some((line) => whole.test(line))).toBe(true);
      expect(lines.join('\n')).not.toMatch(/n…/);
      // Only a line with a name may be wider.
      const wide = lines.filter((line) => line.length > width);
      expect(wide.every((line) => whole.test(line))).toBe(true);
    }
  });
});
