# a desktop with OpenGL
qemu-system-x86_64 \
  -enable-kvm -m 8G \
  -device virtio-vga-gl -display sdl,gl=on \
  -drive file=/srv/vm/desktop.qcow2,if=virtio \
  -nic none \
  -qmp unix:/run/vm.qmp,server=on,wait=off
