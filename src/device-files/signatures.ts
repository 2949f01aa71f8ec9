import { asBuffer } from '../base/index.ts';
import type { Device } from './device.ts';

/** Unsupported contents, by bytes at an offset, as in util-linux (libblkid 2.38). */
const SIGNATURES: readonly (readonly [string, number, string | readonly number[]])[] = [
  ['LUKS encryption', 0, 'LUKS\xba\xbe'],
  ['an XFS file system', 0, 'XFSB'],
  ['a Btrfs file system', 0x1_0040, '_BHRfS_M'],
  ['a physical volume of LVM', 24, 'LVM2 001'],
  ['a physical volume of LVM', 512 + 24, 'LVM2 001'],
  ['a physical volume of LVM', 1024 + 24, 'LVM2 001'],
  ['a physical volume of LVM', 1536 + 24, 'LVM2 001'],
  ['an NTFS file system', 3, 'NTFS    '],
  ['BitLocker encryption', 3, '-FVE-FS-'],
  ['an exFAT file system', 3, 'EXFAT   '],
  ['a FAT file system', 54, 'FAT12   '],
  ['a FAT file system', 54, 'FAT16   '],
  ['a FAT file system', 82, 'FAT32   '],
  ['an F2FS file system', 1024, [0x10, 0x20, 0xf5, 0xf2]],
  ['an EROFS file system', 1024, [0xe2, 0xe1, 0xf5, 0xe0]],
  ['a SquashFS file system', 0, 'hsqs'],
  ['an ISO 9660 file system', 0x8001, 'CD001'],
  ['a JFS file system', 0x8000, 'JFS1'],
  ['a ReiserFS file system', 0x1_0034, 'ReIsEr'],
  ['a GFS2 file system', 0x1_0000, [0x01, 0x16, 0x19, 0x70]],
  ['an OCFS2 file system', 0x2000, 'OCFSV2'],
  ['a VMFS file system', 0x10_0000, [0x0d, 0xd0, 0x01, 0xc0]],
  ['swap space', 4096 - 10, 'SWAPSPACE2'],
  ['a member of a Linux RAID', 0, [0xfc, 0x4e, 0x2b, 0xa9]],
  ['a member of a Linux RAID', 4096, [0xfc, 0x4e, 0x2b, 0xa9]],
  ['a device of bcache', 4096 + 24, [0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]],
  ['an OSD of Ceph (BlueStore)', 0, 'bluestore block device'],
  ['a disk of Oracle ASM', 32, 'ORCLDISK'],
  ['an image in the format qcow2', 0, 'QFI\xfb'],
];
/** ZFS writes uberblocks into the second half of a label, starting at any of them. */
const ZFS = { from: 0x2_0000, until: 0x4_0000, stepBytes: 1024, magic: 0x00ba_b10c } as const;
const START_BYTES = 0x10_0000 + 512;

/** The start of a device, long enough to recognize its contents. Throws errors of the device. */
export async function readStart(device: Device, signal: AbortSignal): Promise<Buffer> {
  return asBuffer(await device.read(0, Math.min(START_BYTES, device.sizeBytes), signal));
}

/** Name of an unsupported content of the device; undefined if not recognized. */
export function recognized(start: Buffer): string | undefined {
  for (const [name, offset, magic] of SIGNATURES) {
    const bytes = typeof magic === 'string' ? Buffer.from(magic, 'latin1') : Buffer.from(magic);
    if (start.subarray(offset, offset + bytes.length).equals(bytes)) return name;
  }
  for (let at = ZFS.from; at + 8 <= Math.min(ZFS.until, start.length); at += ZFS.stepBytes) {
    if (start.readBigUInt64LE(at) === BigInt(ZFS.magic)) return 'a member of a ZFS pool';
  }
  return undefined;
}
