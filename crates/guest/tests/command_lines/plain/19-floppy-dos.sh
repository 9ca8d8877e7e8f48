# DOS with a floppy and a Sound Blaster
qemu-system-x86_64 \
  -m 32 -machine pc,accel=tcg -cpu 486 \
  -fda /srv/vm/boot.img -hda /srv/vm/dos.img -boot a \
  -device sb16 -vga cirrus -nic none -display curses \
  -qmp unix:/run/vm.qmp,server=on,wait=off
